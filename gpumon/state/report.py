"""The Report: everything the agent knows at one moment, frozen. Outputs read it, `fold` makes the next one."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpumon.health.agent_runs import AgentRun
from gpumon.health.alert import Alert
from gpumon.health.catalogue import SHIPPED, Catalogue
from gpumon.health.expectation import Expectation
from gpumon.health.sample_windows import SampleHistory
from gpumon.health.standing import Health
from gpumon.health.table import recorded_windows
from gpumon.model.bus_id import parsed
from gpumon.model.error_event import UNNAMED, ErrorEvent
from gpumon.model.gpu_state import GpuState
from gpumon.model.health_metrics import HealthMetrics
from gpumon.model.hold import Holds
from gpumon.model.maintenance import Known, Maintenance, in_force
from gpumon.model.node import Build, Driver, Node
from gpumon.model.reading import Labels, Sample, Table, samples
from gpumon.model.release import Release
from gpumon.model.snapshot import HOST, DriverStatus, PortReading
from gpumon.model.stored_gpu import StoredGpu
from gpumon.probe.core.state import ProbeState
from gpumon.state.gpu_record import GpuRecord
from gpumon.state.messages import SamplerStatus
from gpumon.state.port_inventory import MissingPort, PortInventory


class Removal(enum.StrEnum):
    """Why a GPU that was here is expected no more."""

    GIVEN = "given"
    """To a virtual machine: another driver has it."""
    EXCLUDED = "excluded"
    REPLACED = "replaced"
    ACCEPTED = "accepted"
    """A person has accepted that it is gone."""


class RemovedGpu(NamedTuple):
    """A GPU that was here and is expected no more."""

    why: Removal
    bus_id: str


Counted = Mapping[str, Mapping[str, tuple[float, float]]]
"""Device -> code -> how often, wall time of the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalState:
    """What the next Report needs of this one and no output shows."""

    samplers: SamplerStatus = SamplerStatus()
    status: DriverStatus | None = None
    """None until the first sampler has tried to initialise the driver."""
    bus: Mapping[str, str] | None = None
    """None until somebody looked at the PCI bus."""
    ports_above: Mapping[str, str] = field(default_factory=dict)
    """Bus id -> address of the PCIe port that the GPU's link leads to."""
    inventory: Mapping[str, GpuRecord] = field(default_factory=dict)
    excluded: tuple[str, ...] = ()
    """Bus ids that the configuration excludes."""
    resuming: Mapping[str, float] = field(default_factory=dict)
    """What was released and has not been read since, by bus id (NODE for the driver itself), with the moment of
    Now.uptime from which that is no longer the release's doing."""
    links: PortInventory = PortInventory()
    heard_at: float | None = None
    """When a poll, or a part of one, last arrived, on the clock of Now.uptime."""
    recalled: bool = False
    """The store has told what it knew."""
    xids: Counted = field(default_factory=dict)
    sxids: Counted = field(default_factory=dict)
    boards: Mapping[str, StoredGpu] = field(default_factory=dict)
    """Bus id -> the GPU that was last seen there in an earlier life of the agent."""
    place: str = HOST
    """One of PLACES."""
    learned: int = 0
    """The most GPUs that were ever here at once, those given to virtual machines included."""
    accepted: bool = False
    """A person has accepted that there are no more than were learned since."""
    gone: Mapping[str, RemovedGpu] = field(default_factory=dict)
    """uuid -> why it is expected no more."""
    history: SampleHistory = field(default_factory=lambda: SampleHistory(windows=recorded_windows()))
    """The samples that the checks read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All memory of the agent is in here."""

    started: float
    """Wall time of the agent's start."""
    boot_id: str = ""
    """Of the host's boot."""
    agent_runs: tuple[AgentRun, ...] = ()
    """Of the agent, the present one last."""
    maintenances: Known = ()
    """The newest last; `maintenance` is the one in force."""
    holds: Holds = ()
    """Of the probe: the newest last, those that have ended among them."""
    simulated: str | None = None
    """Name of the simulated profile."""
    detailed: bool = False
    """Details are exported too."""
    build: Build = Build()
    driver: Driver = Driver()
    node: Node = Node()
    expectation: Expectation = Expectation()
    """How many GPUs should be here."""
    gpus: tuple[GpuState, ...] = ()
    ports: tuple[PortReading, ...] = ()
    """InfiniBand and RoCE; counters as they are exported."""
    gone_ports: tuple[MissingPort, ...] = ()
    """Those that were there since the agent's start."""
    excluded: tuple[str, ...] = ()
    """Bus ids of the GPUs that the configuration excludes: on the bus and counted by NVML, and never opened."""
    release: Release = Release()
    """What the agent keeps off now, because it was asked to."""
    events: tuple[ErrorEvent, ...] = ()
    """Newest last, bounded."""
    catalogue: Catalogue = SHIPPED
    """What the codes of the events mean, on this host."""
    health: Health = Health()
    """Verdicts."""
    alerts: tuple[Alert, ...] = ()
    probe: ProbeState = ProbeState()
    notices: Mapping[str, str] = field(default_factory=dict)
    """What is wrong with the agent itself, in words, by subject: driver, store, configuration, ..."""

    internal: InternalState = InternalState()

    @property
    def maintenance(self) -> Maintenance | None:
        """In which nothing pages now."""
        return in_force(self.maintenances)

    def gpu(self, name: str) -> GpuState | None:
        """The GPU of this uuid, index or PCI address."""
        names = {name, parsed(name)}
        return next((one for one in self.gpus if names & {one.uuid, str(one.index), one.bus_id}), None)

    def judged(self) -> HealthMetrics:
        """The verdicts as a table."""
        places = {state.uuid: f"{state.index},{state.uuid},," for state in self.gpus}
        found = {
            f"{one.check},{_place(one.device, places)}": float(one.level)
            for one in self.health.primary
            if one.device in places or not self._awaits(one.device)
        }
        worst = max([float(self.health.level), *(state.gpu.health or 0.0 for state in self.gpus)])
        return HealthMetrics(health_check=found or None, node_health=worst)

    def _awaits(self, device: str) -> bool:
        """After a start: with another index it would be another series, and a second alert."""
        return device.startswith(UNNAMED) and self.internal.bus is None

    def samples(self) -> Iterator[Sample]:
        """Every series that the agent exports."""
        for table, labels in self.tables():
            yield from samples(table, labels, detailed=self.detailed)

    def tables(self) -> Iterator[tuple[Table, Labels]]:
        """Every table of metrics with the labels that all its series carry."""
        yield self.build, ()
        yield self.driver, ()
        yield self.node, ()
        yield self.judged(), ()
        for state in self.gpus:
            yield from state.tables()
        for state in self.gpus:
            yield from state.link_tables()
        for port in self.ports:
            named = (("device", port.device), ("port", port.port))
            yield port.link, (*named, ("link_layer", port.link_layer))
            yield port.counts, named
        yield self.probe.metrics, ()


def _place(device: str, gpus: Mapping[str, str]) -> str:
    """Values of the labels gpu, uuid, device and port; of the node none."""
    if device in gpus:
        return gpus[device]
    name, _, port = device.partition("/")
    return f",,{name},{port}" if port else f",{device},,"
