"""What the guards of a probe look at: the node and its GPUs, as far as it can be seen who uses them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """Who uses one GPU."""

    index: int
    uuid: str
    processes: float | None
    """None: not known. Between runs read seldom: what follows is read at every poll."""
    strangers: float | None = None
    """Those of them that are not ours."""
    utilization: float | None = None
    """0 to 1."""
    memory_used: float | None = None
    """Bytes."""
    memory_free: float | None = None
    memory_exact: bool = False
    """What the driver keeps for itself is not among the memory in use."""
    traffic: float | None = None
    """Over NVLink and PCIe, both ways, in bytes a second."""
    idle_seconds: float | None = None
    """For how long nobody has been seen to use it; None: not seen yet."""
    mig: bool = False
    compute_mode: int | None = None
    fault: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What the guards look at."""

    gpus: Sequence[GpuUse] = ()
    expected: int = 0
    """GPUs that should be here: one that is not seen may be in use."""
    simulated: bool = False
    enabled: bool = True
    unkillable: Sequence[int] = ()
    """Pids of ranks of earlier runs that SIGKILL did not end."""
    released: bool = False
    """The agent was asked to keep off one GPU or all."""
    maintained: bool = False
    """The node is in maintenance: somebody works on it."""
    held: str = ""
    """Who keeps probes away for a while, in words; empty when nobody does."""
    recalled: bool = True
    """Holds from before the start of the agent are known."""
    store: str = ""
    """What is wrong with the store that knows them, and the remedy; empty when nothing is, or that is not known yet."""
    scheduled: bool = False
    """Nobody asked for this run."""
    schedulers: Collection[str] | None = ()
    """What gives the GPUs of this host to jobs, as far as it was found; None: nobody could look."""
    gated: bool = False
    """The scheduler is asked before a run."""
    idle_seconds: float = 0.0
    """For how long the GPUs must have been idle."""
    memory_needed: float = 0.0
    """Bytes on each GPU."""
    alone: bool = False
    """Each rank acts by itself: one GPU is enough."""
    partial: bool = False
    """Whether a run may use some of the GPUs."""
    unseen: Mapping[str, float] = field(default_factory=dict)
    """By UUID of the GPUs of the run in progress, for how many seconds nobody has seen who holds them."""
    poll_seconds: float = 0.0
    """How long the last poll took: our own load makes it longer."""
    clique: bool = False
    """The GPUs are in an NVLink fabric with those of other nodes."""
