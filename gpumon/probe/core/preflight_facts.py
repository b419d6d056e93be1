"""The input of preflight: the node, its GPUs and their use."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """Use of one GPU by processes."""

    index: int
    uuid: str
    processes: float | None
    """None: unknown. Between runs this is read seldom; the readings below are read at every poll."""
    foreign: float | None = None
    """Number of processes that do not belong to the agent."""
    utilization: float | None = None
    """0 to 1."""
    memory_used: float | None = None
    """Bytes."""
    memory_free: float | None = None
    memory_exact: bool = False
    """Whether the memory in use is without what the driver reserves."""
    traffic: float | None = None
    """Over NVLink and PCIe, both ways, in bytes a second."""
    idle_seconds: float | None = None
    """Seconds since the GPU was last in use; None: unknown."""
    mig: bool = False
    compute_mode: int | None = None
    fault: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightFacts:
    """The state of the node, its configuration and the run that is to begin."""

    gpus: Sequence[GpuUse] = ()
    expected: int = 0
    """Number of expected GPUs. One that is not read may be in use."""
    simulated: bool = False
    enabled: bool = True
    unkillable: Sequence[int] = ()
    """Pids of ranks of earlier runs that SIGKILL did not end."""
    released: bool = False
    """A release of one GPU or all is active."""
    maintained: bool = False
    """The node is in maintenance."""
    held: str = ""
    """The active holds, in words; empty without any."""
    store_read: bool = True
    """True if the store has been read, so that holds from before the start are active."""
    store_error: str = ""
    """The error of the store and its remedy; empty without an error."""
    scheduled: bool = False
    """True if the schedule started the run, not a request."""
    schedulers: Collection[str] | None = ()
    """Schedulers found on this host; None: unknown."""
    gated: bool = False
    """A scheduler gate is configured."""
    idle_seconds: float = 0.0
    """For how long the GPUs must have been idle."""
    memory_needed: float = 0.0
    """Bytes on each GPU."""
    alone: bool = False
    """Each rank acts by itself: one GPU is enough."""
    partial: bool = False
    """A run may leave out GPUs that are in use."""
    unobserved: Mapping[str, float] = field(default_factory=dict)
    """Seconds since processes on each GPU of the run in progress were last read, by UUID."""
    poll_seconds: float = 0.0
    """Duration of the last poll: the probe's own load makes it longer."""
    clique: bool = False
    """The GPUs are in an NVLink fabric with those of other nodes."""
