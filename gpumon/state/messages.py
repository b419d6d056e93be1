"""Messages from the daemon itself that `reduce` applies to the Report, like those from child processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpumon.health.node_health import PendingVerdict
from gpumon.health.verdict import Key, Verdict, VerdictTransition
from gpumon.model.allocation import Allocation
from gpumon.model.error_event import ErrorChange, ErrorCounter, ErrorEvent, LogPosition
from gpumon.model.frame import Frame
from gpumon.model.records import AgentRun, NotifiedAlert, PortRecord, StoredGpu
from gpumon.model.request import DeviceHolder
from gpumon.model.snapshot import HostStatus, SamplerStatus
from gpumon.model.time_window import TimeWindow, Windows, WindowsEnded
from gpumon.probe.core.frames import Progress
from gpumon.probe.core.probes import ALL_REDUCE
from gpumon.probe.core.result import ProbeCounters, ProbeResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorChanges:
    """New and changed error events of all kinds, sent after the attempt to store them."""

    changes: tuple[ErrorChange, ...]
    position: LogPosition | None = None
    """Last record of the kernel log whose error is among these or earlier changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictTransitions:
    """Transitions of verdicts, sent after the attempt to store them."""

    transitions: tuple[VerdictTransition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredState:
    """Content of the store at the start of the agent."""

    lost_to: str = ""
    """Path to which a damaged store was moved when an empty store replaced it; empty if the store was intact."""
    counters: tuple[ErrorCounter, ...] = ()
    events: tuple[ErrorEvent, ...] = ()
    """Error events, the newest last."""
    position: LogPosition | None = None
    """Last record of the kernel log that an earlier run of the agent processed."""
    gpus: tuple[StoredGpu, ...] = ()
    """Stored GPUs, sorted by their last reading, the latest last."""
    ports: tuple[PortRecord, ...] = ()
    """Stored ports, sorted by their last reading, the latest last."""
    accepted: bool = False
    verdicts: tuple[Verdict, ...] = ()
    transitions: tuple[VerdictTransition, ...] = ()
    """Transitions of verdicts, the newest last."""
    cleared: Mapping[Key, VerdictTransition] = field(default_factory=dict)
    """The transition that last cleared each verdict, by check and device."""
    pending: tuple[PendingVerdict, ...] = ()
    """Check results that have not lasted long enough to become verdicts."""
    agent_runs: tuple[AgentRun, ...] = ()
    """Runs of the agent, the newest last. The current run may be among them."""
    windows: Windows = ()
    allocations: tuple[Allocation, ...] = ()
    """Allocations that had not ended, also of earlier boots."""
    notified: tuple[NotifiedAlert, ...] = ()
    """Alerts of which a receiver was notified that they fire, and not yet that they are resolved."""
    probe_results: tuple[ProbeResult, ...] = ()
    probe_counters: Mapping[str, ProbeCounters] = field(default_factory=dict)
    """Numbers of runs by name of the probe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """GPUs and ports that the operator accepted as they are. Sent after the acceptance was stored."""

    count: int | None
    """Accepted number of GPUs; None if the expected number does not change."""
    gone: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()
    """Identities of ports that are down or gone."""
    slow: Mapping[str, float] = field(default_factory=dict)
    """Accepted speed in bytes per second, by identity of a port that was faster before."""
    lanes: Mapping[str, float] = field(default_factory=dict)
    """Accepted number of PCIe lanes of GPUs, by uuid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeStarted:
    """A probe run started. Sent a second time when the ranks of the run are about to start."""

    id: str
    probe: str = ALL_REDUCE
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs that the run uses from now on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStatus:
    """State of the daemon itself, sent at each tick."""

    log_messages: Mapping[str, float]
    store_up: bool
    kernel_log_up: bool | None = None
    """True if the kernel log can be read; None if there is none to read."""
    kernel_log_overruns: float = 0.0
    kernel_log_denied: bool = False
    http_refused: Mapping[str, float] = field(default_factory=dict)
    """Number of refused connections and requests, by reason."""
    notifications: Mapping[str, float] = field(default_factory=dict)
    """Number of notifications by "receiver,outcome"."""
    resident_memory: Mapping[str, float] = field(default_factory=dict)
    """Resident memory in bytes of the daemon and of its children."""
    next_probes: Mapping[str, float] = field(default_factory=dict)
    """Wall time of the next scheduled run, by name of the probe; empty if probes are disabled."""
    probe_unkillable: tuple[int, ...] = ()
    """Process ids of ranks that SIGKILL does not end."""
    notices: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseHolders:
    """Processes of the agent that still have a released GPU open."""

    holders: tuple[DeviceHolder, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Sent every 5 seconds: outdated readings are removed, samples are taken, and checks are evaluated."""


Message = (
    Frame
    | HostStatus
    | SamplerStatus
    | ReleaseHolders
    | ErrorChanges
    | VerdictTransitions
    | Acceptance
    | TimeWindow
    | WindowsEnded
    | StoredState
    | ProbeStarted
    | Progress
    | ProbeResult
    | AgentStatus
    | Tick
)
"""Progress: of the slowest rank of the current probe run. ProbeResult: the run ended or was skipped."""
