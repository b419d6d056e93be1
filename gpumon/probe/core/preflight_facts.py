"""The facts about node, GPUs and processes from which preflight decides whether a run may begin."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """How much one GPU is used, and by how many processes."""

    index: int
    uuid: str
    processes: float | None
    """Number of processes on the GPU; None if unknown. Between runs it is read less often than utilization and memory.
    """
    holders: Sequence[str] = ()
    """Names and pids of up to two of these processes; empty if they cannot be read."""
    foreign: float | None = None
    """Number of processes on the GPU that do not belong to the agent; None if unknown."""
    utilization: float | None = None
    """Utilization of the GPU, 0 to 1; None if unknown."""
    memory_used: float | None = None
    """Bytes of GPU memory in use; None if unknown."""
    memory_free: float | None = None
    memory_exact: bool = False
    """Whether `memory_used` excludes the memory that the driver reserves."""
    traffic: float | None = None
    """Traffic over NVLink and PCIe in both directions together, in bytes per second; None if unknown."""
    idle_seconds: float | None = None
    """Seconds for which no process, load or memory in use was observed on the GPU; None while it is in use, or if
    unknown.
    """
    mig: bool = False
    compute_mode: int | None = None
    fault: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightFacts:
    """Everything that preflight checks: the state of the node and its GPUs, the configuration, and the kind of run."""

    gpus: Sequence[GpuUse] = ()
    expected: int = 0
    """Number of GPUs that the host should have. An expected GPU that is missing may be in use."""
    simulated: bool = False
    enabled: bool = True
    unkillable: Sequence[int] = ()
    """Pids of ranks of earlier runs that SIGKILL did not end."""
    released: bool = False
    """Whether a release of one GPU or of all GPUs is active."""
    maintained: bool = False
    """Whether the node is in maintenance."""
    held: str = ""
    """Description of the active holds; empty if there is none."""
    store_read: bool = True
    """Whether the store has been read. Until then, holds from before the agent's start are not in `held`."""
    store_error: str = ""
    """The error of the store and its remedy; empty without an error."""
    scheduled: bool = False
    """Whether the schedule started the run, as opposed to a request."""
    schedulers: Collection[str] | None = ()
    """Names of the schedulers on this host; None if this is not determined yet."""
    gated: bool = False
    """Whether a scheduler gate is configured."""
    min_idle_seconds: float = 0.0
    """Seconds for which the GPUs must have been idle before the run; 0 for a run on request."""
    memory_needed: float = 0.0
    """Bytes of free memory that a run needs on each GPU."""
    alone: bool = False
    """Whether each rank works by itself, so that one GPU is enough."""
    partial: bool = False
    """Whether a run may leave out GPUs that are in use."""
    unobserved: Mapping[str, float] = field(default_factory=dict)
    """Seconds since processes on each GPU of the run in progress were last read, by UUID."""
    poll_seconds: float = 0.0
    """Seconds that the last polls of the fast and slow readings took together. The load of a run makes polls slower."""
    clique: bool = False
    """Whether the GPUs belong to an NVLink fabric that spans several nodes."""
