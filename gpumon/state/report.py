"""The Report: the whole state of the agent at one time, frozen. Outputs read it, and `reduce` returns the next one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from gpumon.health.alert import Alert, alerts_of
from gpumon.health.catalogue import SHIPPED, Catalogue
from gpumon.health.node_health import Health
from gpumon.health.products import Expectation
from gpumon.health.remediation import action_sentence, performed_repair
from gpumon.health.sample_windows import SampleHistory
from gpumon.health.table import recorded_windows
from gpumon.health.verdict import HISTORY_UNREAD, LOST_TO, NODE, OK, UNKNOWN, Action, Verdict, labels_of_device
from gpumon.model import time_window
from gpumon.model.bus_id import parse_bus_id
from gpumon.model.error_event import UNNAMED, ErrorEvent, LogPosition
from gpumon.model.frame import Frame
from gpumon.model.gpu_state import GpuState
from gpumon.model.infiniband import InfinibandPortInfo
from gpumon.model.node import Build, Driver, HealthMetrics, Node, VerdictInfo
from gpumon.model.reading import KEY_SEPARATOR, Labels, labels_of
from gpumon.model.records import AgentRun
from gpumon.model.snapshot import HostSnapshot, HostStatus, PortReading, PortReadings
from gpumon.model.time_window import TimeWindow, WindowKind, Windows, last_to_end, released_scopes
from gpumon.probe.core.state import ProbeState
from gpumon.state.allocations import JobState
from gpumon.state.gpu_inventory import GpuInventory
from gpumon.state.port_inventory import MissingPort, PortInventory

ValueT = TypeVar("ValueT", bound=Frame)

INFINIBAND, PROCESSES = "infiniband", "processes"

Counted = Mapping[str, Mapping[str, tuple[float, float]]]
"""Number of errors, and wall time of the last one, by device and then by error code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Errors of GPUs and NVSwitches."""

    events: tuple[ErrorEvent, ...] = ()
    """Error events, the newest last, at most MAX_EVENTS."""
    xids: Counted = field(default_factory=dict)
    sxids: Counted = field(default_factory=dict)
    position: LogPosition | None = None
    catalogue: Catalogue = SHIPPED

    @property
    def by_nvswitch(self) -> dict[str, float] | None:
        """Return the number of errors by "nvswitch,sxid" (PCI address and code); None without an SXid error."""
        counts = {
            f"{switch},{code}": count for switch, codes in self.sxids.items() for code, (count, _) in codes.items()
        }
        return counts or None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """State of the host child, the last snapshot from it, the ports, and the number of service stops."""

    child: HostStatus = HostStatus()
    snapshot: HostSnapshot | None = None
    """The last snapshot, with the last value of each reader."""
    read_at: float = 0.0
    """Time at which the snapshot arrived, as Now.uptime."""
    is_current: bool = False
    """True if there is a snapshot that is not older than STALE_SECONDS."""
    stops: Mapping[str, float] = field(default_factory=dict)
    """Number of stops and restarts by systemd unit name, since the start of the agent."""
    fabric_manager_elsewhere: bool = False
    """True if the fabric manager has run outside its unit, as in a container of the GPU operator."""
    inventory: PortInventory = PortInventory()

    def value(self, kind: type[ValueT]) -> ValueT:
        """Return the last value of this type; one without attributes, which is "unknown", if there is none."""
        return kind() if self.snapshot is None else self.snapshot.value(kind)

    @property
    def current(self) -> HostSnapshot | None:
        """Return the last snapshot; None if `is_current` is False."""
        return self.snapshot if self.is_current else None

    @property
    def lists_all_ports(self) -> bool:
        """Return True if the last snapshot lists every port, so that a port that it does not list is missing."""
        snapshot, child = self.snapshot, self.child
        if snapshot is None or INFINIBAND in snapshot.errors or snapshot.value(PortReadings).left_out:
            return False
        return not (child.quarantined or child.trouble)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentState:
    """The agent itself: its runs, its store, its notices, and the metrics of the node."""

    runs: tuple[AgentRun, ...] = ()
    """Runs of the agent, the current run last."""
    restored: bool = False
    lost_to: str = ""
    """Path to which a damaged store was moved when an empty store replaced it; empty if the store was intact."""
    notices: Mapping[str, str] = field(default_factory=dict)
    """Problems of the agent itself, by subject such as driver, store or configuration."""
    node: Node = Node()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The whole state of the agent at one time: a few constants, and the state of each section.

    The properties below are what outputs read of the sections. `state.sections` has the table of the sections.
    """

    started: float
    """Wall time in seconds at which the agent started."""
    boot_id: str = ""
    simulated: str | None = None
    """Name of the simulated profile; None on a real node."""
    detailed: bool = False
    """True if /metrics also exports detailed metrics."""
    build: Build = Build()

    windows: Windows = ()
    """Releases, holds and maintenances in force, and the last windows that have ended. The newest window is last."""
    errors: Errors = Errors()
    health: Health = Health()
    inventory: GpuInventory = GpuInventory()
    host: HostState = HostState()
    jobs: JobState = JobState()
    agent: AgentState = AgentState()
    probe: ProbeState = ProbeState()
    samples: SampleHistory = field(default_factory=lambda: SampleHistory(windows=recorded_windows()))
    """Samples of metrics in the recent past, which checks read."""

    @property
    def gpus(self) -> tuple[GpuState, ...]:
        """Return the GPUs of the node, sorted by index."""
        return self.inventory.states

    @property
    def driver(self) -> Driver:
        return self.inventory.driver

    @property
    def expectation(self) -> Expectation:
        """Return the expected number of GPUs, with the basis of that number."""
        return self.inventory.expectation

    @property
    def excluded(self) -> tuple[str, ...]:
        """Return the bus ids of GPUs that the configuration excludes. NVML counts them, but the agent opens none."""
        return self.inventory.pci.excluded

    @property
    def ports(self) -> tuple[PortReading, ...]:
        """Return the InfiniBand and RoCE ports that are present, with counters as exported."""
        return self.host.inventory.ports if self.host.is_current else ()

    @property
    def gone_ports(self) -> tuple[MissingPort, ...]:
        """Return the ports that are expected but not present."""
        return self.host.inventory.missing if self.host.is_current else ()

    @property
    def events(self) -> tuple[ErrorEvent, ...]:
        """Return the last error events, the newest last."""
        return self.errors.events

    @property
    def catalogue(self) -> Catalogue:
        """Return the meaning of each Xid code on this host."""
        return self.errors.catalogue

    @property
    def node(self) -> Node:
        return self.agent.node

    @property
    def notices(self) -> Mapping[str, str]:
        """Return the problems of the agent itself, by subject such as driver, store or configuration."""
        return self.agent.notices

    @property
    def maintenance(self) -> TimeWindow | None:
        """Return the maintenance in force that ends last; None without a maintenance."""
        return last_to_end(self.windows, WindowKind.MAINTENANCE)

    @property
    def alerts(self) -> tuple[Alert, ...]:
        """Return the alerts of the verdicts that are exported: firing, pending, and recently resolved ones."""
        in_maintenance = self.maintenance is not None
        alerts = alerts_of(self.health, self.gpus, boot_id=self.boot_id, in_maintenance=in_maintenance)
        return tuple(each for each in alerts if "gpu" in dict(each.labels) or not self._may_be_renamed(each.key[1]))

    def gpu(self, name: str) -> GpuState | None:
        """Return the GPU with this uuid, index or PCI address; None if there is none."""
        names = {name, parse_bus_id(name)}
        return next((gpu for gpu in self.gpus if names & {gpu.uuid, str(gpu.index), gpu.bus_id}), None)

    @property
    def has_been_read(self) -> bool:
        """Return True if a poll of the GPUs has ended or the driver is down, or if the whole node is released."""
        status = self.inventory.status
        is_down = status is not None and not status.up
        return bool(self.node.polls_total) or is_down or time_window.NODE in released_scopes(self.windows)

    def health_metrics(self) -> HealthMetrics:
        """Return the verdicts as a metric table."""
        levels = {place: float(verdict.level) for place, verdict in self._placed_verdicts(self.health.primary)}
        # No GPU is listed and no Snapshot has arrived since the agent's start. If the driver was tried, the host has no
        # GPU and expects none, or is released.
        inventory, tried = self.inventory, self.inventory.status is not None and self.node.nvml_up != 0
        lowest = UNKNOWN if not self.gpus and inventory.polled_at is None and not tried else OK
        worst = max([float(max(self.health.level, lowest)), *(state.gpu.health or 0.0 for state in self.gpus)])
        return HealthMetrics(health_check=levels or None, node_health=worst)

    def _placed_verdicts(self, verdicts: Iterable[Verdict]) -> Iterator[tuple[str, Verdict]]:
        """Yield the label values, joined by commas, and the verdict itself, for each verdict that may be exported."""
        indexes = {name: state.index for state in self.gpus for name in (state.uuid, state.pci_name)}
        for verdict in verdicts:
            if verdict.device in indexes or not self._may_be_renamed(verdict.device):
                labels = {"check": verdict.check, **dict(labels_of_device(verdict.device, indexes))}
                yield KEY_SEPARATOR.join(labels.get(name, "") for name in VerdictInfo.LABELS), verdict

    def verdict_infos(self) -> Iterator[tuple[VerdictInfo, Labels]]:
        """Yield the metric table of each exported verdict, with the labels of its check and device."""
        reasons = self.health.stated_reasons if self.health.open else {}
        for place, verdict in self._placed_verdicts(self.health.primary):
            action = Action.NONE if performed_repair(verdict, self.boot_id) else verdict.action
            coded = self.health.with_code(verdict)
            reason = " ".join(dict.fromkeys(reasons.get(each.key, each.reason) for each in (verdict, coded)))
            text = action_sentence(verdict, self.health, self.boot_id)
            info = VerdictInfo(action=action, action_text=text, code=coded.code, reason=verdict.with_holders(reason))
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
        return bool(self.agent.lost_to) and (cleared is None or cleared.time.wall < self.started)

    def _may_be_renamed(self, device: str) -> bool:
        """Return True if the device is a GPU without a uuid that may still get an index, when the PCI bus is read.

        If a verdict were exported before that, the index would cause another series and a second alert.
        """
        return device.startswith(UNNAMED) and self.inventory.bus is None
