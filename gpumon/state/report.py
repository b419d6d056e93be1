"""The Report: the whole state of the agent at one time, frozen. Outputs read it, and `reduce` returns the next one."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpumon.health.agent_runs import AgentRun
from gpumon.health.alert import Alert
from gpumon.health.catalogue import SHIPPED, Catalogue
from gpumon.health.expectation import Expectation
from gpumon.health.node_health import Health
from gpumon.health.remediation import action_sentence, performed_repair
from gpumon.health.sample_windows import SampleHistory
from gpumon.health.table import recorded_windows
from gpumon.health.verdict import HISTORY_UNREAD, LOST_TO, NODE, OK, UNKNOWN, Action, Verdict
from gpumon.model.bus_id import parse_bus_id
from gpumon.model.error_event import UNNAMED, ErrorEvent
from gpumon.model.gpu_state import GpuState
from gpumon.model.infiniband import InfinibandPortInfo
from gpumon.model.node import Build, Driver, HealthMetrics, Node, VerdictInfo
from gpumon.model.reading import METRICS, Labels, Sample, Table, count_series, labels_of, samples
from gpumon.model.request_result import DeviceHolder
from gpumon.model.snapshot import DriverStatus, PortReading
from gpumon.model.time_window import TimeWindow, WindowKind, Windows, last_to_end
from gpumon.probe.core.state import ProbeState
from gpumon.state.gpu_inventory import GpuInventory
from gpumon.state.gpu_record import GpuRecord
from gpumon.state.host_status import HostState
from gpumon.state.messages import SamplerStatus
from gpumon.state.port_inventory import MissingPort, PortInventory

Counted = Mapping[str, Mapping[str, tuple[float, float]]]
"""Number of errors, and wall time of the last one, by device and then by error code."""


class GpuInputs(NamedTuple):
    """The values from which the GpuState of one GPU is derived."""

    record: GpuRecord
    xids: Mapping[str, tuple[float, float]] | None
    catalogue: Catalogue
    fault: str | None
    detail: str
    since: float | None
    health: float
    released: bool
    port_above: str | None
    slot_lanes: int | None

    def same(self, other: GpuInputs) -> bool:
        """Return True if `other` gives the same GpuState.

        Objects are compared by identity, plain values by equality.
        """
        return all(map(operator.is_, self[:3], other[:3])) and self[3:] == other[3:]


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalState:
    """State from which `reduce` computes the next Report. Outputs do not show it."""

    samplers: SamplerStatus = SamplerStatus()
    status: DriverStatus | None = None
    """Result of the last attempt to initialise the driver; None before the first."""
    inventory: GpuInventory = GpuInventory()
    derived: Mapping[str, tuple[GpuInputs, GpuState]] = field(default_factory=dict)
    """For each GPU, by bus id: the last GpuState that was derived, preceded by its inputs."""
    resuming: Mapping[str, float] = field(default_factory=dict)
    """GPUs that have not been read since the end of their release, by bus id (NODE for the driver). The value is the
    time, as Now.uptime, from which the release no longer explains why a GPU is not read.
    """
    ports: PortInventory = PortInventory()
    host: HostState = HostState()
    polled_at: float | None = None
    """Time at which the last Snapshot arrived, as Now.uptime; None before the first."""
    restored: bool = False
    """True after the store has been read."""
    lost_to: str = ""
    """Path to which a damaged store was moved when an empty store replaced it; empty if the store was intact."""
    xids: Counted = field(default_factory=dict)
    sxids: Counted = field(default_factory=dict)
    history: SampleHistory = field(default_factory=lambda: SampleHistory(windows=recorded_windows()))
    """Samples of metrics in the recent past, which checks read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The whole state of the agent at one time."""

    started: float
    """Wall time in seconds at which the agent started."""
    boot_id: str = ""
    """Id of the host's current boot."""
    agent_runs: tuple[AgentRun, ...] = ()
    """Runs of the agent, the current run last."""
    windows: Windows = ()
    """Releases, holds and maintenances in force, and the last windows that have ended. The newest window is last."""
    release_holders: tuple[DeviceHolder, ...] = ()
    """Processes of the agent that still have a released GPU open."""
    simulated: str | None = None
    """Name of the simulated profile; None on a real node."""
    detailed: bool = False
    """True if /metrics also exports detailed metrics."""
    build: Build = Build()
    driver: Driver = Driver()
    node: Node = Node()
    expectation: Expectation = Expectation()
    """Expected number of GPUs, with the basis of that number."""
    gpus: tuple[GpuState, ...] = ()
    ports: tuple[PortReading, ...] = ()
    """InfiniBand and RoCE ports that are present, with counters as exported."""
    gone_ports: tuple[MissingPort, ...] = ()
    """Ports that are expected but not present."""
    excluded: tuple[str, ...] = ()
    """Bus ids of GPUs that the configuration excludes. NVML counts them, but the agent never opens them."""
    events: tuple[ErrorEvent, ...] = ()
    """Error events, the newest last, at most MAX_EVENTS."""
    catalogue: Catalogue = SHIPPED
    """Meaning of each Xid code on this host."""
    health: Health = Health()
    """Verdicts about GPUs, ports and the node."""
    alerts: tuple[Alert, ...] = ()
    probe: ProbeState = ProbeState()
    notices: Mapping[str, str] = field(default_factory=dict)
    """Problems of the agent itself, by subject such as driver, store or configuration."""

    internal: InternalState = InternalState()

    @property
    def maintenance(self) -> TimeWindow | None:
        """Return the maintenance in force that ends last; None without a maintenance."""
        return last_to_end(self.windows, WindowKind.MAINTENANCE)

    def gpu(self, name: str) -> GpuState | None:
        """Return the GPU with this uuid, index or PCI address; None if there is none."""
        names = {name, parse_bus_id(name)}
        return next((gpu for gpu in self.gpus if names & {gpu.uuid, str(gpu.index), gpu.bus_id}), None)

    def health_metrics(self) -> HealthMetrics:
        """Return the verdicts as a metric table."""
        levels = {place: float(verdict.level) for place, verdict in self._placed_verdicts(self.health.primary)}
        lowest = UNKNOWN if self._is_unread else OK
        worst = max([float(max(self.health.level, lowest)), *(state.gpu.health or 0.0 for state in self.gpus)])
        return HealthMetrics(health_check=levels or None, node_health=worst)

    @property
    def _is_unread(self) -> bool:
        """Return True if no GPU is listed and no Snapshot has arrived since the agent's start.

        Return False nevertheless if the driver was tried, and the host has no GPU and expects none, or is released.
        """
        internal = self.internal
        return not self.gpus and internal.polled_at is None and (internal.status is None or self.node.nvml_up == 0)

    def _placed_verdicts(self, verdicts: Iterable[Verdict]) -> Iterator[tuple[str, Verdict]]:
        """Yield the label values, joined by commas, and the verdict itself, for each verdict that may be exported."""
        places = {name: f"{state.index},{name},," for state in self.gpus for name in (state.uuid, state.pci_name)}
        for verdict in verdicts:
            if verdict.device in places or not self._may_be_renamed(verdict.device):
                yield f"{verdict.check},{_place(verdict.device, places)}", verdict

    def _verdict_infos(self) -> Iterator[tuple[VerdictInfo, Labels]]:
        reasons = self.health.stated_reasons if self.health.open else {}
        for place, verdict in self._placed_verdicts(self.health.primary):
            action = Action.NONE if performed_repair(verdict, self.boot_id) else verdict.action
            coded = self.health.with_code(verdict)
            reason = " ".join(dict.fromkeys(reasons.get(each.key, each.reason) for each in (verdict, coded)))
            text = action_sentence(verdict, self.health, self.boot_id)
            info = VerdictInfo(action=action, action_text=text, code=coded.code, reason=reason)
            yield info, labels_of(VerdictInfo.LABELS, place)

    def port_info(self, port: PortReading) -> InfinibandPortInfo:
        """Return the metric table with the role and link layer of a port, and the GPUs below the port's PCIe switch."""
        gpus = sorted(state.index for state in self.gpus if state.bus_id in port.placement.gpus)
        return InfinibandPortInfo(role=port.role, link_layer=port.link_layer, gpu=",".join(map(str, gpus)) or None)

    @property
    def hides_verdicts(self) -> bool:
        """Return True if an open verdict is not exported yet, because its GPU has no index but may still get one."""
        here = {state.uuid for state in self.gpus}
        return any(device not in here and self._may_be_renamed(device) for _, device in self.health.open)

    @property
    def lost_history(self) -> bool:
        """Return True if a damaged store was replaced, and no operator has cleared the verdict about that yet."""
        key = (HISTORY_UNREAD, NODE)
        cleared, verdict = self.health.cleared.get(key), self.health.open.get(key)
        if verdict is not None:
            return LOST_TO in verdict.evidence
        return bool(self.internal.lost_to) and (cleared is None or cleared.wall < self.started)

    def _may_be_renamed(self, device: str) -> bool:
        """Return True if the device is a GPU without a uuid that may still get an index, when the PCI bus is read.

        If a verdict were exported before that, the index would cause another series and a second alert.
        """
        return device.startswith(UNNAMED) and self.internal.inventory.bus is None

    def samples(self, names: frozenset[str] | None = None) -> Iterator[Sample]:
        """Yield every value of the metric tables, including 0, but detailed metrics only if `Report.detailed` is True.

        If `names` is given, yield only these metrics.
        """
        for table, labels in self.tables():
            yield from samples(table, labels, detailed=self.detailed, names=names)

    def count_series(self) -> int:
        """Return the number of series on /metrics."""
        return sum(count_series(table, METRICS, detailed=self.detailed) for table, _ in self.tables())

    def tables(self) -> Iterator[tuple[Table, Labels]]:
        """Yield every metric table, with the labels that all series of the table have."""
        yield self.build, ()
        yield self.driver, ()
        yield self.node, ()
        yield self.health_metrics(), ()
        yield from self._verdict_infos()
        for state in self.gpus:
            yield from state.tables()
        for state in self.gpus:
            yield from state.link_tables()
        for port in self.ports:
            named = (("device", port.device), ("port", port.port))
            yield self.port_info(port), named
            yield port.link, (*named, ("link_layer", port.link_layer))
            yield port.counts, named
        yield self.probe.metrics, ()


def _place(device: str, gpus: Mapping[str, str]) -> str:
    """Return a device's values of the labels gpu, uuid, device and port, joined by commas; all empty for the node.

    `gpus`: these values for each GPU, by its uuid and by the substitute for the uuid.
    """
    if device in gpus:
        return gpus[device]
    name, _, port = device.partition("/")
    return f",,{name},{port}" if port else f",{device},,"
