"""Jobs that hold GPUs: how their GPUs move compared with their own past, and their metric tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gpumon.model.allocation import Owner
from gpumon.model.reading import AGENT, agent, identity

MOVING, STILL, IDLE, OTHER = "moving", "still", "idle", "other"
"""Motions of a GPU. moving: it uses its memory, its tensor cores or its links. still: it is busy without that, at low
and constant power, as when a kernel waits for a peer. idle: no kernel runs. other: none of these.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How a GPU moves for the job that holds it alone, and how it moved before."""

    motion: str | None = None
    """The motion when it was last read; None if never."""
    read_at: float = 0.0
    """When it was last read, as Now.uptime."""
    since: float = 0.0
    """Start of the motion, as Now.uptime."""
    still_from: float | None = None
    """When it was first still since it last moved, as Now.uptime; None if it was not."""
    moved_at: float | None = None
    """Boot clock at which it was last moving; None if never under this job."""
    moving_seconds: float = 0.0
    watts: float | None = None
    """Typical power while it moves."""
    link_bytes_per_second: float = 0.0
    """Typical traffic over its NVLinks while it moves."""
    power_range: tuple[float, float] = (0.0, 0.0)
    """Minimum and maximum power in watts since it is still."""
    longest_still: float = 0.0
    """Longest time in seconds from the first time at which it was still until it moved again."""

    def motion_at(self, tick: float) -> str | None:
        """Return the motion at the last tick (Now.uptime); None if the GPU could not be read then."""
        return self.motion if self.read_at == tick else None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProcess:
    """A process of a job that uses a GPU, at the last turn of the reader `owners`."""

    state: str
    """State letter: R, S, D, T, Z, ..."""
    cpu_ratio: float | None = None
    """CPU time per second since the turn before; None at its first turn."""
    io_bytes_per_second: float | None = None
    """Traffic of its cgroup with block devices since the turn before; None if unknown."""
    at: float
    """Boot clock of the turn."""
    cpu_seconds: float | None
    io_bytes: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGpu:
    """A GPU that a job holds alone."""

    uuid: str
    pace: Pace
    processes: tuple[JobProcess, ...] | None
    """None if they are unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job with GPUs of this node. It shares none of them, and none is divided into MIG instances."""

    id: str
    """Key of its owner, with the names that every reader may know."""
    owner: Owner
    source: str
    gpus: tuple[JobGpu, ...]
    at: float
    """Time of the last tick, as Now.uptime. GPUs whose `pace` was read earlier cannot be read now."""
    in_force: bool
    """False while the source that named the owner is silent."""

    @property
    def moved_at(self) -> float | None:
        """Return the boot clock at which one of its GPUs was last moving; None if never."""
        return max((gpu.pace.moved_at for gpu in self.gpus if gpu.pace.moved_at is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMetrics:
    """The GPUs of a job on this node, and whether they move. Which names of its owner are labels is configured."""

    PREFIX: ClassVar[str] = "gpumon_job_"
    LABELS: ClassVar[tuple[str, ...]] = ("job_id",)

    source: str | None = identity("Where the owner is from: mapping, kubelet or process.", AGENT)
    slurm_partition: str | None = identity("Partition of the Slurm job.", AGENT)
    pod_namespace: str | None = identity("Namespace of the pod.", AGENT)
    account: str | None = identity("Account of the Slurm job.", AGENT)
    user: str | None = identity("User of the job.", AGENT)
    gpus: float | None = agent("GPUs of this node that the job holds alone.")
    moving_ratio: float | None = agent(
        "Share of these GPUs that use their memory, tensor cores or NVLinks now, as while the job moved."
    )
    active: float | None = agent(
        "1 if one of these GPUs moves, or its process works on its CPU or waits for storage, so that GPUs of the job "
        "on other nodes may wait for it; else 0."
    )
    last_moving_timestamp_seconds: float | None = agent("Time at which one of these GPUs was last moving.")
