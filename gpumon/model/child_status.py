"""State of the sampler and host children, which the services that supervise them send."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """Quarantine of a GPU or device: children open it only as a retry, because calls on it may hang or crash."""

    fault: str
    detail: str
    wall: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerStatus:
    """State of the sampler children, sent by the service that supervises them."""

    stuck_seconds: float = 0.0
    """Seconds for which the current driver call has not returned; 0 if no call is in progress."""
    quarantined: Mapping[str, Quarantine] = field(default_factory=dict)
    """Quarantined GPUs by bus id."""
    restarts: Mapping[str, float] = field(default_factory=dict)
    """Number of restarts of the sampler, by reason."""
    abandoned: tuple[str, ...] = ()
    """Names of the child processes that SIGKILL did not end."""
    gave_up: bool = False
    """True if no sampler runs, because too many children were abandoned."""
    hang: str = ""
    """A clause that names the driver call that does not return and when that began; empty after a snapshot."""
    driver_calls: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStatus:
    """State of the host child, sent by the service that supervises the child."""

    quarantined: Mapping[str, Quarantine] = field(default_factory=dict)
    """Quarantined devices and collectors by name. Their files are not read, because a read of them blocked."""
    abandoned: tuple[str, ...] = ()
    """Names of the child processes that SIGKILL did not end."""
    trouble: str = ""
    """Reason why no host child runs; empty if one runs."""
