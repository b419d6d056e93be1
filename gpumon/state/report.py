"""The Report: the whole state of the agent at one moment, frozen. Outputs read it, `reduce` returns the next one."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpumon.health.agent_runs import AgentRun
from gpumon.health.alert import Alert
from gpumon.health.catalogue import SHIPPED, Catalogue
from gpumon.health.expectation import Expectation
from gpumon.health.node_health import Health
from gpumon.health.sample_windows import SampleHistory
from gpumon.health.table import recorded_windows
from gpumon.model.bus_id import parse_bus_id
from gpumon.model.error_event import UNNAMED, ErrorEvent
from gpumon.model.gpu_state import GpuState
from gpumon.model.health_metrics import HealthMetrics
from gpumon.model.node import Build, Driver, Node
from gpumon.model.reading import Labels, Sample, Table, count_series, samples
from gpumon.model.request_result import DeviceHolder
from gpumon.model.snapshot import DriverStatus, PortReading
from gpumon.model.time_window import TimeWindow, WindowKind, Windows, last_to_end
from gpumon.probe.core.state import ProbeState
from gpumon.state.gpu_inventory import GpuInventory
from gpumon.state.gpu_record import GpuRecord
from gpumon.state.links_status import LinksState
from gpumon.state.messages import SamplerStatus
from gpumon.state.port_inventory import MissingPort, PortInventory

Counted = Mapping[str, Mapping[str, tuple[float, float]]]
"""Device -> code -> (count, wall time of the last one)."""


class GpuInputs(NamedTuple):
    """Everything from which the state of one GPU is derived."""

    record: GpuRecord
    xids: Mapping[str, tuple[float, float]] | None
    catalogue: Catalogue
    fault: str | None
    detail: str
    since: float | None
    health: float
    released: bool
    port_above: str | None

    def same(self, other: GpuInputs) -> bool:
        """Return whether both lead to the same state."""
        return all(map(operator.is_, self[:3], other[:3])) and self[3:] == other[3:]


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalState:
    """State that the next Report needs and that no output shows."""

    samplers: SamplerStatus = SamplerStatus()
    status: DriverStatus | None = None
    """None until the first sampler has tried to initialise the driver."""
    inventory: GpuInventory = GpuInventory()
    derived: Mapping[str, tuple[GpuInputs, GpuState]] = field(default_factory=dict)
    """Bus id -> the inputs and the state last derived from them."""
    resuming: Mapping[str, float] = field(default_factory=dict)
    """Bus ids (NODE for the driver) that were released and not read since. The value is the time on the clock of
    Now.uptime after which the release no longer explains that.
    """
    ports: PortInventory = PortInventory()
    links: LinksState = LinksState()
    polled_at: float | None = None
    """Arrival of the last poll or part of a poll, on the clock of Now.uptime."""
    restored: bool = False
    """The store has been read."""
    xids: Counted = field(default_factory=dict)
    sxids: Counted = field(default_factory=dict)
    history: SampleHistory = field(default_factory=lambda: SampleHistory(windows=recorded_windows()))
    """The samples that checks read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The state of the agent."""

    started: float
    """Wall time at which the agent started."""
    boot_id: str = ""
    """Boot of the host."""
    agent_runs: tuple[AgentRun, ...] = ()
    """Runs of the agent, this one last."""
    windows: Windows = ()
    """Releases, holds and maintenances in force, and the last ones that have ended. Newest last."""
    release_holders: tuple[DeviceHolder, ...] = ()
    """Processes of the agent that still have a released GPU open."""
    simulated: str | None = None
    """Name of the simulated profile; None on a real node."""
    detailed: bool = False
    """/metrics exports details too."""
    build: Build = Build()
    driver: Driver = Driver()
    node: Node = Node()
    expectation: Expectation = Expectation()
    """How many GPUs should be here."""
    gpus: tuple[GpuState, ...] = ()
    ports: tuple[PortReading, ...] = ()
    """InfiniBand and RoCE ports, with counters as exported."""
    gone_ports: tuple[MissingPort, ...] = ()
    """Ports that should be here and are not."""
    excluded: tuple[str, ...] = ()
    """Bus ids that the configuration excludes: on the bus and counted by NVML, but never opened."""
    events: tuple[ErrorEvent, ...] = ()
    """The newest last, at most MAX_EVENTS."""
    catalogue: Catalogue = SHIPPED
    """Meaning of the Xid codes on this host."""
    health: Health = Health()
    """Verdicts."""
    alerts: tuple[Alert, ...] = ()
    probe: ProbeState = ProbeState()
    notices: Mapping[str, str] = field(default_factory=dict)
    """Problems of the agent itself by subject: driver, store, configuration, ..."""

    internal: InternalState = InternalState()

    @property
    def maintenance(self) -> TimeWindow | None:
        """Return the maintenance in force that ends last."""
        return last_to_end(self.windows, WindowKind.MAINTENANCE)

    def gpu(self, name: str) -> GpuState | None:
        """Return the GPU with this uuid, index or PCI address."""
        names = {name, parse_bus_id(name)}
        return next((gpu for gpu in self.gpus if names & {gpu.uuid, str(gpu.index), gpu.bus_id}), None)

    def health_metrics(self) -> HealthMetrics:
        """Return the verdicts as a table of metrics."""
        places = {name: f"{state.index},{name},," for state in self.gpus for name in (state.uuid, state.unnamed)}
        levels = {
            f"{verdict.check},{_place(verdict.device, places)}": float(verdict.level)
            for verdict in self.health.primary
            if verdict.device in places or not self._may_be_renamed(verdict.device)
        }
        worst = max([float(self.health.level), *(state.gpu.health or 0.0 for state in self.gpus)])
        return HealthMetrics(health_check=levels or None, node_health=worst)

    @property
    def hides_verdicts(self) -> bool:
        """Return whether a verdict is not exported yet."""
        here = {state.uuid for state in self.gpus}
        return any(device not in here and self._may_be_renamed(device) for _, device in self.health.open)

    def _may_be_renamed(self, device: str) -> bool:
        """Return whether the GPU may still get an index: that would be another series and a second alert."""
        return device.startswith(UNNAMED) and self.internal.inventory.bus is None

    def samples(self, names: frozenset[str] | None = None) -> Iterator[Sample]:
        """Yield every series that the agent exports. `names`: of these metrics only."""
        for table, labels in self.tables():
            yield from samples(table, labels, detailed=self.detailed, names=names)

    def count_series(self) -> int:
        """Return the number of series that the agent exports."""
        return sum(count_series(table, detailed=self.detailed) for table, _ in self.tables())

    def tables(self) -> Iterator[tuple[Table, Labels]]:
        """Yield every table of metrics with the labels of all its series."""
        yield self.build, ()
        yield self.driver, ()
        yield self.node, ()
        yield self.health_metrics(), ()
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
    """Return the values of the labels gpu, uuid, device and port; all are empty for the node."""
    if device in gpus:
        return gpus[device]
    name, _, port = device.partition("/")
    return f",,{name},{port}" if port else f",{device},,"
