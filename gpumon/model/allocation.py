"""Owners of GPUs: what the host child reads about them, allocations, and their metric tables.

All names are data of strangers (jobs, pods, users): `clipped` bounds and cleans them where they are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import ClassVar

from gpumon.model.frame import Frame
from gpumon.model.instant import Instant
from gpumon.model.printable import printable
from gpumon.model.reading import AGENT, agent, identity, rows

IDLE_LEVELS = ("no_process", "no_kernel", "cold")
"""Levels of an idle GPU, the most idle first: no process; processes, but no kernel; kernels that hardly work."""
Key = tuple[str, str, str]
"""UUIDs of the GPU and of the MIG instance ("" for the whole GPU), and key of the owner."""
MAX_NAME = 64
"""Maximum number of characters of a name."""
MAPPING, KUBELET, PROCESS = SOURCES = ("mapping", "kubelet", "process")
"""Sources of owners, in the order of their precedence: mapping files of a scheduler's prolog, the kubelet's
PodResources, and the cgroups of the processes on the GPU.
"""
KINDS = ("slurm", "pod", "pod_uid", "container", "unit", "user")
"""Kinds of owners, with which `Owner.key` begins."""


def clipped(name: str) -> str | None:
    """Return a name that a stranger chose with at most MAX_NAME printable characters; None if it is empty."""
    return printable(name[:MAX_NAME]) or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A job, pod, container, unit or user that holds GPUs, with as many of its names as its source has."""

    slurm_job_id: str | None = None
    slurm_sluid: str | None = None
    """Id of a Slurm job that a requeue changes; from Slurm 26.05 on it is in the cgroup instead of the job id."""
    slurm_partition: str | None = None
    account: str | None = None
    pod_namespace: str | None = None
    pod_name: str | None = None
    pod_uid: str | None = None
    container_name: str | None = None
    container_id: str | None = None
    systemd_unit: str | None = None
    user: str | None = None

    @property
    def names(self) -> dict[str, str]:
        """Return the names that are known, by attribute."""
        return {each.name: value for each in fields(self) if (value := getattr(self, each.name)) is not None}

    @property
    def key(self) -> str:
        """Return a text that identifies the owner, also if another source has more of its names."""
        if self.slurm_job_id or self.slurm_sluid:
            return f"slurm/{self.slurm_job_id or self.slurm_sluid}"
        if self.pod_name and self.pod_namespace:
            return f"pod/{self.pod_namespace}/{self.pod_name}"
        names = (("pod_uid", self.pod_uid), ("container", self.container_id), ("unit", self.systemd_unit))
        return next((f"{kind}/{name}" for kind, name in names if name), f"user/{self.user or ''}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A statement of one source: these devices were given to this owner."""

    owner: Owner
    devices: tuple[str, ...]
    """Names as the source writes them, such as GPU-..., MIG-..., GPU-...::2, nvidia0/gi1, gpu-3 or 0.1."""
    since: float | None = None
    """Wall time in seconds at which the owner got them; None if the source does not report it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderProcess:
    """A process that uses a GPU, from files of /proc that every user may read."""

    owner: Owner
    state: str
    """State letter of the process: R, S, D, T, Z, ..."""
    cpu_seconds: float | None = None
    """CPU time that it has used."""
    io_bytes: float | None = None
    """Bytes that its cgroup has read from and written to block devices; None without cgroup version 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerReadings(Frame):
    """Value of the reader `owners`. None is unknown: the source is not there, or is silent."""

    mapped: tuple[Claim, ...] | None = None
    pods: tuple[Claim, ...] | None = None
    processes: Mapping[str, HolderProcess] = field(default_factory=dict)
    """Processes by id, as decimal text. Those that have ended are absent."""
    silent: bool = False
    """Whether a source is there that does not answer, or that may not be read: it may know of more owners."""


MAX_HELD = 1024
"""Maximum number of allocations that are known and stored."""
LATE_SECONDS = 15.0
"""Seconds for which an owner is still that of an error after its source last named it: an error may end the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """One owner's hold on one GPU or MIG instance, from its beginning on; a row of the store."""

    uuid: str
    """UUID of the GPU."""
    mig_uuid: str = ""
    """UUID of the MIG instance; empty for the whole GPU."""
    source: str
    owner: Owner
    began: Instant
    """When the owner got the GPU: as its source reports it, else when the agent first detected the owner."""
    last_wall: float
    """Wall time in seconds at which the source last named the owner."""
    ended: bool = False
    held_seconds: float = 0.0
    """Seconds for which the agent observed the GPU meanwhile, times the owner's share of the GPU, like what follows."""
    busy_seconds: float = 0.0
    no_process_seconds: float = 0.0
    no_kernel_seconds: float = 0.0
    cold_seconds: float = 0.0
    energy_joules: float = 0.0

    @property
    def key(self) -> Key:
        return self.uuid, self.mig_uuid, self.owner.key

    def was_held(self, wall: float) -> bool:
        """Return True if the allocation was in force at a time (Unix time), or ended just before it."""
        return self.began.wall <= wall <= self.last_wall + LATE_SECONDS

    @property
    def id(self) -> str:
        """Return a text that identifies this allocation also among later ones of the same owner."""
        return f"{self.uuid} {self.mig_uuid} {self.owner.key} {self.began.boot_id} {self.began.at:.3f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationInfo:
    """Who holds a GPU or MIG instance. Which names of the owner are labels is configured."""

    PREFIX: ClassVar[str] = "gpumon_gpu_allocation_"
    LABELS: ClassVar[tuple[str, ...]] = ("gpu", "uuid")

    mig_uuid: str | None = identity("UUID of the MIG instance; empty for a whole GPU.", AGENT)
    source: str | None = identity("Where the owner is from: mapping, kubelet or process.", AGENT)
    job_id: str | None = identity(
        "Kind and name of the owner, as in `gpumon jobs`; empty if `jobs.labels` omits its name.", AGENT
    )
    slurm_job_id: str | None = identity("Id of the Slurm job.", AGENT)
    slurm_partition: str | None = identity("Partition of the Slurm job.", AGENT)
    pod_namespace: str | None = identity("Namespace of the pod.", AGENT)
    pod_name: str | None = identity("Name of the pod.", AGENT)
    container_name: str | None = identity("Name of the container in the pod.", AGENT)
    container_id: str | None = identity("Id of the container.", AGENT)
    systemd_unit: str | None = identity("Unit of systemd.", AGENT)
    account: str | None = identity("Account of the Slurm job.", AGENT)
    user: str | None = identity("User of the job or process.", AGENT)


OWNER_LABELS = tuple(name for name in rows(AllocationInfo) if name not in {"mig_uuid", "source", "job_id"})
"""Names of an owner that can be labels, as attributes of Owner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationUse:
    """How long a GPU was held by any owner, and how much of that time it was idle."""

    PREFIX: ClassVar[str] = "gpumon_gpu_"
    LABELS: ClassVar[tuple[str, ...]] = ("gpu", "uuid")

    allocated_seconds_total: float | None = agent("Observed time for which an owner held the GPU.")
    idle_seconds_total: dict[str, float] | None = agent(
        "Part of gpumon_gpu_allocated_seconds_total in which the GPU was idle, by level.",
        label="level",
        note="no_process: no process was on it. no_kernel: processes, but no kernel ran. cold: kernels ran, but with "
        "little power and hardly any memory access, as when they wait.",
    )
