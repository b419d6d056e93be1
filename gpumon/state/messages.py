"""The messages that `reduce` applies to the Report, besides those of the children."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpumon.health.agent_runs import AgentRun
from gpumon.health.pending_verdicts import PendingVerdict
from gpumon.health.verdict import Key, Verdict, VerdictTransition
from gpumon.model.error_event import ErrorChange, ErrorCounter, ErrorEvent, LogPosition
from gpumon.model.port_record import PortRecord
from gpumon.model.request_result import DeviceHolder
from gpumon.model.snapshot import DriverStatus, LinksSnapshot, PciBus, Snapshot
from gpumon.model.stored_gpu import StoredGpu
from gpumon.model.time_window import TimeWindow, Windows, WindowsEnded
from gpumon.probe.core.frames import Progress
from gpumon.probe.core.probes import ALL_REDUCE
from gpumon.probe.core.result import ProbeResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """Why no child opens a GPU or a device: a call on it did not return, or crashed the library."""

    fault: str
    detail: str
    wall: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerStatus:
    """State of the samplers, from their supervisor."""

    stuck_seconds: float = 0.0
    """Seconds for which the current driver call has not returned."""
    quarantined: Mapping[str, Quarantine] = field(default_factory=dict)
    """By bus id."""
    restarts: Mapping[str, float] = field(default_factory=dict)
    """By reason."""
    abandoned: tuple[str, ...] = ()
    """Names of the children that SIGKILL did not end."""
    gave_up: bool = False
    """True if so many children were abandoned that no sampler runs."""
    driver_calls: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinksStatus:
    """State of the links child, from its supervisor."""

    quarantined: Mapping[str, Quarantine] = field(default_factory=dict)
    """Devices and collectors whose files cannot be read, by name."""
    abandoned: tuple[str, ...] = ()
    """Names of the children that SIGKILL did not end."""
    trouble: str = ""
    """Why no links child runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorChanges:
    """New errors of GPUs and NVSwitches, after the attempt to store them."""

    changes: tuple[ErrorChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictTransitions:
    """Transitions of verdicts, after the attempt to store them."""

    transitions: tuple[VerdictTransition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredState:
    """What the store has at the start of the agent."""

    counters: tuple[ErrorCounter, ...] = ()
    events: tuple[ErrorEvent, ...] = ()
    """Newest last."""
    position: LogPosition | None = None
    """Record up to which the kernel log was processed."""
    gpus: tuple[StoredGpu, ...] = ()
    """GPUs by bus id; those with the same address in the order of their last reading."""
    ports: tuple[PortRecord, ...] = ()
    """Ports in the order of their last reading."""
    accepted: bool = False
    """True if the operator accepted the number of GPUs."""
    verdicts: tuple[Verdict, ...] = ()
    transitions: tuple[VerdictTransition, ...] = ()
    """Newest last."""
    cleared: Mapping[Key, VerdictTransition] = field(default_factory=dict)
    """How each verdict was last cleared."""
    pending: tuple[PendingVerdict, ...] = ()
    """Findings that had not lasted long enough to become verdicts."""
    agent_runs: tuple[AgentRun, ...] = ()
    """Runs of the agent, the newest last; the present one may be among them."""
    windows: Windows = ()
    """Newest last."""
    probe_results: tuple[ProbeResult, ...] = ()
    probe_runs: Mapping[str, float] = field(default_factory=dict)
    probe_skips: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """What the operator accepted, after it was stored."""

    count: int | None
    """Accepted number of GPUs; None if only ports were accepted."""
    gone: tuple[str, ...] = ()
    """GPUs that are gone, by uuid."""
    ports: tuple[str, ...] = ()
    """Ports that are down or gone, by identity."""
    slow: Mapping[str, float] = field(default_factory=dict)
    """Accepted speed of ports that were faster before, by identity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeStarted:
    """A run started; sent again when its ranks are about to start."""

    id: str
    probe: str = ALL_REDUCE
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs that it loads from now on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeProgressed:
    """Progress of the slowest rank of the run."""

    progress: Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeEnded:
    """A run ended or was skipped."""

    result: ProbeResult


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStatus:
    """State of the daemon itself."""

    log_messages: Mapping[str, float]
    store_up: bool
    kernel_log_up: bool | None = None
    """None if there is no kernel log to read."""
    kernel_log_overruns: float = 0.0
    kernel_log_denied: bool = False
    http_refused: Mapping[str, float] = field(default_factory=dict)
    """Refused connections and requests by reason."""
    next_probe: float | None = None
    """Wall time of the next scheduled run."""
    probe_unkillable: tuple[int, ...] = ()
    """Pids of ranks that SIGKILL does not end."""
    notices: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseHolders:
    """The processes of the agent that still have a released GPU open."""

    holders: tuple[DeviceHolder, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed: readings that are too old disappear and checks are evaluated."""


Message = (
    Snapshot
    | PciBus
    | DriverStatus
    | LinksSnapshot
    | LinksStatus
    | SamplerStatus
    | ReleaseHolders
    | ErrorChanges
    | VerdictTransitions
    | Acceptance
    | TimeWindow
    | WindowsEnded
    | StoredState
    | ProbeStarted
    | ProbeProgressed
    | ProbeEnded
    | AgentStatus
    | Tick
)
