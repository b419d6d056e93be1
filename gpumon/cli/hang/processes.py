"""Finds the ranks of jobs on this host in /proc: processes with threads of torch and the environment of a rank."""

from __future__ import annotations

import contextlib
import pwd
import re
import socket
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpumon.cli.hang.dump import safe_text
from gpumon.cli.hang.evidence import NO_PROCESS, RankEvidence, Unread
from gpumon.cli.hang.worker_server import thread_names
from gpumon.cli.health_file import CheckError
from gpumon.cli.job_gpus import CUDA, SLURM, from_job
from gpumon.collectors.host.cgroup import owner_of
from gpumon.model.allocation import KINDS

PROC = Path("/proc")
THREADS = re.compile(r"pt_(?:workerserver|tcpstore_uv|gloo_runloop|nccl_watchdg|nccl_heartbt)|gloo_tcp_loop")
"""Names of threads that torch.distributed starts."""
LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class LocalRank:
    """A process of a rank on this host. None: not in its environment."""

    pid: int
    started: str
    """Start time in clock ticks, which with the pid identifies the process."""
    user: int
    rank: int
    size: int | None
    local_rank: int | None
    local_size: int | None
    job: str
    """The Slurm job, or the user, and the address of the rendezvous."""
    cgroups: str
    gpu: str | None
    """The GPU that the rank uses if it follows its local rank: as in CUDA_VISIBLE_DEVICES, or its device node."""
    host_name: str = ""
    """That of its environment, which in Kubernetes is the name of the pod."""
    dump: str = ""
    """File in which torch writes the flight recorder of the rank after a timeout."""


def find_ranks() -> tuple[list[LocalRank], list[Unread]]:
    """Return the ranks of all jobs that this user may read, and the processes of torch whose rank cannot be read.

    A process without threads of torch is taken for its rank if no other does: it has not reached torch.distributed yet.
    """
    ranks: dict[tuple[str, int], list[LocalRank]] = defaultdict(list)
    early, unread = [], []
    for pid in sorted(int(path.name) for path in PROC.iterdir() if path.name.isdecimal()):
        uses_torch = any(map(THREADS.fullmatch, thread_names(pid)))
        try:
            if (rank := _rank(pid)) is not None and uses_torch:
                ranks[rank.job, rank.rank].append(rank)
            elif rank is not None:
                early.append(rank)
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
        except (OSError, subprocess.SubprocessError) as error:
            if uses_torch:
                reason = "run as root or as the job's user" if isinstance(error, PermissionError) else "it is blocked"
                unread.append(Unread(f"process {pid}", f"its environment cannot be read: {reason}"))
    jobs = {job for job, _ in ranks}
    for each in early:
        if each.job in jobs and (each.job, each.rank) not in ranks:
            ranks[each.job, each.rank] = [each]
    return [each for own in ranks.values() for each in own], unread


def _rank(pid: int) -> LocalRank | None:
    """Return a process as a rank; None if its environment has no rank, as that of torchrun's agent."""
    stat, process = read_stat(pid), PROC / str(pid)
    environ = _environ(pid, asleep=stat[0] == "D")
    rank, size = _number(environ, "RANK", "SLURM_PROCID"), _number(environ, "WORLD_SIZE", "SLURM_NTASKS")
    if rank is None:
        return None
    local_size = _number(environ, "LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE")
    local_rank = _number(environ, "LOCAL_RANK", "SLURM_LOCALID")
    user, slurm_job = process.stat().st_uid, environ.get("SLURM_JOB_ID", "")
    master = environ.get("MASTER_ADDR", "")
    place = f" of {socket.gethostname()}" if master in LOOPBACK else ""
    address = f"rendezvous {master}:{environ.get('MASTER_PORT', '')}{place}"
    return LocalRank(
        pid=pid,
        started=stat[19],
        user=user,
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=size if local_size is None and master in LOOPBACK else local_size,
        job=safe_text(f"Slurm job {slurm_job}, {address}" if slurm_job else f"job of user {user}, {address}"),
        cgroups=(process / "cgroup").read_text(errors="replace"),
        gpu=_gpu(environ, local_rank),
        host_name=environ.get("HOSTNAME", ""),
        dump=_dump(environ, rank),
    )


def _dump(environ: Mapping[str, str], rank: int) -> str:
    """Return the path to which torch 2.13 writes a dump by default, or that was set."""
    cache = environ.get("XDG_CACHE_HOME") or f"{environ.get('HOME', '')}/.cache"
    names = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    own = next((environ[name] for name in names if environ.get(name)), f"{cache}/torch/comm_lib_trace_rank_")
    return safe_text(f"{own}{rank}")


def find_dump(rank: LocalRank) -> Path | None:
    """Return the dump of a rank, below the root of its process if that is in a container; None if there is none.

    A child looks for it, because a file system that hangs would block this process.
    """
    root = PROC / str(rank.pid) / "root"
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        below = root if root.readlink() != Path("/") else Path("/")
        path = below / rank.dump.lstrip("/")
        if subprocess.run(["test", "-s", path], timeout=2, check=False).returncode == 0:
            return path
    return None


def _gpu(environ: Mapping[str, str], local_rank: int | None) -> str | None:
    """Return the GPU of a rank; None if it is unknown, as if CUDA_VISIBLE_DEVICES is another part of Slurm's GPUs."""
    try:
        origin, names = from_job((), environ)
        visible = from_job((), {CUDA: environ[CUDA]}).names if CUDA in environ else names
    except CheckError:
        return None
    index = 0 if len(names) == 1 else local_rank
    if len(visible) != len(names) or index is None or index >= len(names):
        return None
    return safe_text(f"/dev/nvidia{names[index]}" if origin in SLURM else names[index])


def read_stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on."""
    return (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()


def _environ(pid: int, *, asleep: bool) -> Mapping[str, str]:
    """Return the environment. In state D the read may block, so a child reads it, which can be killed."""
    path = PROC / str(pid) / "environ"
    if asleep:
        content = subprocess.run(["cat", path], capture_output=True, timeout=2, check=True).stdout
    else:
        content = path.read_bytes()
    pairs = (text.partition("=") for text in content.decode(errors="replace").split("\0"))
    return {name: value for name, _, value in pairs}


def _number(environ: Mapping[str, str], *names: str) -> int | None:
    texts = (environ.get(name, "") for name in names)
    return next((int(text) for text in texts if re.fullmatch(r"\d{1,6}", text)), None)


def select(ranks: Sequence[LocalRank], job: str | None) -> dict[str, list[LocalRank]]:
    """Return the ranks by job: of all jobs, or of those that a Slurm id, a process id or part of a cgroup names."""
    jobs: dict[str, list[LocalRank]] = defaultdict(list)
    for rank in ranks:
        jobs[rank.job].append(rank)
    return {name: own for name, own in jobs.items() if job is None or any(_matches(rank, job) for rank in own)}


def _matches(rank: LocalRank, job: str) -> bool:
    """Return whether a name is that of the rank's job, also in the form of `gpumon jobs`: slurm/4711."""
    kind, _, name = job.partition("/")
    if kind not in KINDS:
        kind, name = "", job
    if kind == "user":
        return name in {str(rank.user), user_name(rank.user)}
    if kind == "pod":  # a cgroup has the uid of a pod, but not its name, of which 63 characters are its host name
        return rank.host_name == name.rpartition("/")[2][:63] and owner_of(rank.cgroups).pod_uid is not None
    if name.isdecimal():
        in_slurm = re.search(rf"^Slurm job {name},|/job_{name}(?:/|$)", f"{rank.job}\n{rank.cgroups}", re.MULTILINE)
        return in_slurm is not None or (not kind and int(name) in _ancestors(rank.pid))
    return len(name) >= 4 and any(text in rank.cgroups for text in (name, name.replace("-", "_")))


def user_name(user: int) -> str | None:
    """Return the name of a user; None if it has none here."""
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(user).pw_name
    return None


def _ancestors(pid: int) -> Iterator[int]:
    """Yield a process, its parent, and so on, without process 1."""
    with contextlib.suppress(OSError):
        while pid > 1:
            yield pid
            pid = int(read_stat(pid)[1])


def process_evidence(rank: LocalRank) -> RankEvidence:
    """Return the state of the process of a rank now; NO_PROCESS if it has ended."""
    state, wchan = NO_PROCESS, ""
    with contextlib.suppress(OSError):
        stat = read_stat(rank.pid)
        if stat[19] == rank.started:
            state = stat[0]
            wchan = safe_text((PROC / str(rank.pid) / "wchan").read_text().strip("0"))
    return RankEvidence(rank.rank, socket.gethostname(), rank.pid, state, wchan, rank.gpu)


def absent(ranks: Sequence[LocalRank]) -> list[int]:
    """Return the ranks that belong on this host and have no process; none if that cannot be derived."""
    first = {rank.rank - rank.local_rank for rank in ranks if rank.local_rank is not None}
    sizes = {rank.local_size for rank in ranks}
    if len(first) != 1 or len(sizes) != 1:
        return []
    start, size = first.pop(), sizes.pop() or 0
    return sorted(set(range(start, start + size)) - {rank.rank for rank in ranks})
