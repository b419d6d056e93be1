"""What arrives at the daemon and is folded into the next Report: children's messages, and what is in here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpumon.health.agent_runs import AgentRun
from gpumon.health.pending_verdicts import PendingVerdict
from gpumon.health.verdict import Key, Verdict, VerdictTransition
from gpumon.model.error_event import ErrorChange, ErrorEvent
from gpumon.model.hold import Hold, HoldEnded, Holds
from gpumon.model.maintenance import Known, Maintenance, MaintenanceEnded
from gpumon.model.port_record import PortRecord
from gpumon.model.release import Release
from gpumon.model.snapshot import DriverStatus, LinksSnapshot, PciBus, Snapshot
from gpumon.model.stored_gpu import StoredGpu
from gpumon.probe.core.frames import Progress
from gpumon.probe.core.probes import ALL_REDUCE
from gpumon.probe.core.result import ProbeResult
from gpumon.store.events import ErrorCounter


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """A GPU that no sampler opens, because a call on it did not return or broke the library."""

    fault: str
    detail: str
    wall: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerStatus:
    """How the samplers fare, as their supervisor sees it."""

    stuck_seconds: float = 0.0
    """How long the current driver call has been seen not to return."""
    aside: Mapping[str, Quarantine] = field(default_factory=dict)
    """By bus id."""
    restarts: Mapping[str, float] = field(default_factory=dict)
    """By reason."""
    abandoned: tuple[str, ...] = ()
    """Names of the children that SIGKILL did not end."""
    gave_up: bool = False
    """Too many were abandoned: no sampler runs."""
    driver_calls: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinksStatus:
    """How the links child fares, as its supervisor sees it."""

    aside: Mapping[str, Quarantine] = field(default_factory=dict)
    """Devices and collectors whose files do not answer."""
    abandoned: tuple[str, ...] = ()
    """Names of the children that SIGKILL did not end."""
    trouble: str = ""
    """Why there is none, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorChanges:
    """Errors of GPUs and NVSwitches, after the attempt to make them durable."""

    changes: tuple[ErrorChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictTransitions:
    """What became of verdicts, after the attempt to make it durable."""

    transitions: tuple[VerdictTransition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredState:
    """What the store still knew at start."""

    counters: tuple[ErrorCounter, ...] = ()
    events: tuple[ErrorEvent, ...] = ()
    """Newest last."""
    boards: tuple[StoredGpu, ...] = ()
    """Those at one address in the order in which they were seen there last."""
    ports: tuple[PortRecord, ...] = ()
    """The one seen last stands last."""
    accepted: bool = False
    """A person has accepted how many GPUs there are."""
    verdicts: tuple[Verdict, ...] = ()
    transitions: tuple[VerdictTransition, ...] = ()
    """Newest last."""
    cleared: Mapping[Key, VerdictTransition] = field(default_factory=dict)
    """How each verdict was last cleared."""
    pending: tuple[PendingVerdict, ...] = ()
    """What had not lasted long enough."""
    agent_runs: tuple[AgentRun, ...] = ()
    """Of the agent; the newest last, its present one may be among them."""
    maintenances: Known = ()
    """Newest last."""
    holds: Holds = ()
    """Newest last."""
    probe_results: tuple[ProbeResult, ...] = ()
    probe_runs: Mapping[str, float] = field(default_factory=dict)
    probe_skips: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """A person has accepted what is here, and it is stored: so many GPUs, and these are gone."""

    count: int | None
    """None: only of ports."""
    gone: tuple[str, ...] = ()
    """By uuid."""
    ports: tuple[str, ...] = ()
    """Ports that are down or gone, by identity."""
    slow: Mapping[str, float] = field(default_factory=dict)
    """The speed of ports that were faster before, by identity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeStarted:
    """A run began, or, told again, its ranks are about to start."""

    id: str
    probe: str = ALL_REDUCE
    gpus: tuple[str, ...] = ()
    """UUIDs of those that it loads from now on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeProgressed:
    """The slowest rank of the run got so far."""

    progress: Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeEnded:
    """A run ended, or was skipped."""

    result: ProbeResult


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStatus:
    """The daemon on itself."""

    log_messages: Mapping[str, float]
    store_up: bool
    kernel_log_up: bool | None = None
    """None where there is no kernel log to read."""
    kernel_log_overruns: float = 0.0
    kernel_log_denied: bool = False
    next_probe: float | None = None
    """Wall time."""
    probe_unkillable: tuple[int, ...] = ()
    """Pids of ranks that SIGKILL does not end."""
    notices: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time passed: what is too old goes, and the rules are evaluated."""


Message = (
    Snapshot
    | PciBus
    | DriverStatus
    | LinksSnapshot
    | LinksStatus
    | SamplerStatus
    | Release
    | ErrorChanges
    | VerdictTransitions
    | Acceptance
    | Maintenance
    | MaintenanceEnded
    | Hold
    | HoldEnded
    | StoredState
    | ProbeStarted
    | ProbeProgressed
    | ProbeEnded
    | AgentStatus
    | Tick
)
