"""Finds and kills all processes that ranks start, also of earlier agents, and deletes the shared memory they leave.

If a cgroup is delegated to the agent, the ranks of a pass get a cgroup of their own. Otherwise the agent becomes their
subreaper: a process that loses its parent becomes a child of the agent. In both cases each rank also has its own
process group, and PDEATHSIG (exec_shim.py) kills it when the agent ends. Ranks and gate commands are marked by an
environment variable, so that the next agent can kill those that remain.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal
import threading
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path

from gpumon.clock import boot_clock
from gpumon.supervisor import child_process
from gpumon.supervisor.process_tree import become_subreaper, children, descendants, stat

log = logging.getLogger("gpumon.probe")

AGENT = "GPUMON_AGENT"
"""Environment variable of ranks and gate commands. Its value is `PID-STARTTIME` of the agent that started them."""
PROC = Path("/proc")


def process_names(pids: Iterable[int]) -> tuple[str, ...]:
    """Return the names and pids of the two processes with the lowest pids, such as `Xorg, pid 812`, if readable."""
    names = list[str]()
    for pid in islice(sorted(pids), 2):
        with contextlib.suppress(OSError):
            names.append(f"{(PROC / str(pid) / 'comm').read_text(errors='replace').strip()}, pid {pid}")
    return tuple(names)


def environment() -> Mapping[str, str]:
    """Return the environment variable GPUMON_AGENT, which marks processes of this agent. Their children inherit it."""
    return {AGENT: own_mark()}


def own_mark() -> str:
    """Return `PID-STARTTIME` of this process. A pid alone may be reused."""
    return f"{os.getpid()}-{start_time(PROC / 'self')}"


def is_other_agent_alive(mark: str) -> bool:
    """Return whether another agent, whose mark is `PID-STARTTIME`, is alive."""
    agent, _, start = mark.partition("-")
    return bool(start) and mark != own_mark() and _is_alive(agent, start)


def end_orphans() -> threading.Thread:
    """Start a thread that kills ranks and gate commands of agents that have ended. Return the thread.

    A thread is used because reading the environment of a process that is blocked in a driver may never return.
    """
    thread = threading.Thread(target=_end_orphans, name="orphans", daemon=True)
    thread.start()
    return thread


def _end_orphans() -> None:
    for process in PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or its pid belongs to another user now
            if process.stat().st_uid == os.geteuid() and _is_orphan(process) and _kill_orphan(process):
                log.warning("killed a process of an earlier agent", extra={"pid": int(process.name)})


def _kill_orphan(process: Path) -> bool:
    """Kill the process if it is still an orphan. Return whether it was one."""
    descriptor = os.pidfd_open(int(process.name))
    try:
        orphan = _is_orphan(process)  # the pid cannot be reused while the descriptor is open
        if orphan:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        return orphan
    finally:
        os.close(descriptor)


def _is_orphan(process: Path) -> bool:
    """Return whether a process is marked and its agent has ended; False for a process of another PID namespace."""
    name = f"{AGENT}=".encode()
    marks = [word for word in _read_bytes(process / "environ").split(b"\0") if word.startswith(name)]
    agent, dash, start = b"".join(marks[:1]).removeprefix(name).decode(errors="replace").partition("-")
    return bool(dash) and not _is_alive(agent, start) and _shares_namespace(process, "pid")


def _is_alive(agent: str, start: str) -> bool:
    """Return whether the process with this pid and start time is alive.

    A process of another time namespace counts as alive, because its start time cannot be compared.
    """
    current = start_time(PROC / agent)
    if current and current != start:
        with contextlib.suppress(OSError):  # a process of another user is no agent of ours
            return not _shares_namespace(PROC / agent, "time")
    return current == start


def start_time(process: Path) -> str:
    """Return the start time of a process (its /proc folder) in clock ticks since boot; empty if it has ended."""
    return next(iter(_read_bytes(process / "stat").rpartition(b")")[2].split()[19:20]), b"").decode()


def _shares_namespace(process: Path, kind: str) -> bool:
    """Return whether a process shares this namespace, such as pid. Raise OSError if its namespace cannot be read."""
    own, other = PROC / "self" / "ns" / kind, process / "ns" / kind
    return not own.exists() or own.stat().st_ino == other.stat().st_ino


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


MOUNTS = ("sys/fs/cgroup", "sys/fs/cgroup/unified")
PREFIX = "probe-"
"""Prefix of the names of cgroups for ranks. It is followed by `PID-STARTTIME` of the agent that created the cgroup."""
DELEGATED = ("user.delegate", "trusted.delegate")
"""Extended attributes by which systemd marks a delegated cgroup. An agent that runs as root needs one of them to use a
cgroup, because root could write to every cgroup.
"""
_SESSION, _START = 3, 19
"""Indexes of the session and of the start time in /proc/PID/stat, counted from the process state."""
_TICKS = os.sysconf("SC_CLK_TCK")


def make_containment(root: Path = Path("/")) -> Containment:
    """Return a cgroup if the agent may create one, else a subreaper. Kill what is left of earlier agents' ranks."""
    end_remains(root)
    parent = _delegated_cgroup(root)
    if parent is None:
        return SubreaperContainment()
    path = parent / f"{PREFIX}{own_mark()}"
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        log.warning("cannot make a cgroup for the ranks", extra={"path": str(path), "error": str(error)})
        return SubreaperContainment()
    return CgroupContainment(path)


def end_remains(root: Path = Path("/")) -> None:
    """Kill the processes in probe cgroups of agents that no longer run; remove these cgroups and this agent's own.

    A probe cgroup contains only ranks and processes that ranks started. Other agents that run keep theirs, even if it
    is empty: its ranks may be about to be added. A cgroup that is not empty yet remains until the next call.
    """
    parent = _delegated_cgroup(root)
    for path in () if parent is None else parent.glob(f"{PREFIX}*"):
        mark, remains = path.name.removeprefix(PREFIX), CgroupContainment(path)
        if is_other_agent_alive(mark):
            continue
        if mark != own_mark() and (pids := remains.pids()):
            remains.kill()
            log.warning("killed remains of an earlier agent's ranks", extra={"pids": sorted(pids)})
        remains.remove()


class SubreaperContainment:
    """Containment of one pass without a cgroup: the agent is the subreaper of the descendants of the ranks."""

    def __init__(self) -> None:
        become_subreaper()
        self._since = int(boot_clock() * _TICKS) - 1
        self._ranks: set[int] = set()

    def add(self, pid: int) -> None:
        """Put a rank into the containment, before it gets its first step."""
        self._ranks.add(pid)

    def pids(self) -> frozenset[int]:
        """Return the pids of contained processes that have not ended, without ranks, unlike a cgroup.

        A scan may miss a process whose parent ends meanwhile, so scan again if one finds none.
        """
        return frozenset(self._scan() or self._scan())

    def kill(self) -> None:
        """Send SIGKILL to the contained processes (see `pids`). The caller must kill the ranks."""
        _kill(self.pids())

    def remove(self) -> None:
        """Do nothing. The caller must ensure that no process is left."""

    def _scan(self) -> set[int]:
        inherited = set()
        for pid in children(os.getpid()) - child_process.unreaped_pids:
            fields = stat(pid)
            # a child that lost its parent, a rank, has another session, and was started since the pass began
            if len(fields) > _START and int(fields[_SESSION]) != os.getsid(0) and int(fields[_START]) >= self._since:
                inherited.add(pid)
        _reap(inherited)
        processes = inherited | descendants(*inherited, *self._ranks)
        return {pid for pid in processes - self._ranks if stat(pid)[:1] not in ([], ["Z"])}


class CgroupContainment:
    """A cgroup (v2) for the ranks of one pass. If a rank cannot be added, the run continues without containment.

    The cgroup has no controllers, so the agent may stay in the parent cgroup, and the limits of its unit do not change.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, pid: int) -> None:
        try:
            (self._path / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            log.warning("cannot add a rank to its cgroup", extra={"pid": pid, "error": str(error)})

    def pids(self) -> frozenset[int]:
        pids = frozenset(map(int, read_text(self._path / "cgroup.procs").split()))
        return pids - {0}  # a process of another pid namespace; signaling pid 0 would signal this process

    def kill(self) -> None:
        try:
            (self._path / "cgroup.kill").write_text("1")
        except OSError:  # a kernel before 5.14
            _kill(self.pids())

    def remove(self) -> None:
        """Remove the cgroup. If that fails, the next pass or the next agent removes it."""
        with contextlib.suppress(OSError):
            self._path.rmdir()


Containment = CgroupContainment | SubreaperContainment


def _delegated_cgroup(root: Path) -> Path | None:
    """Return the agent's cgroup if it may create cgroups there. If it runs as root, systemd must have delegated it."""
    lines = read_text(root / "proc/self/cgroup").splitlines()
    place = next((line.removeprefix("0::").lstrip("/") for line in lines if line.startswith("0::")), None)
    if place is None:
        return None
    folders = (root / mount / place for mount in MOUNTS)
    own = next((folder for folder in folders if str(os.getpid()) in read_text(folder / "cgroup.procs").split()), None)
    if own is None or not all(os.access(path, os.W_OK, effective_ids=True) for path in (own, own / "cgroup.procs")):
        return None
    return own if os.geteuid() != 0 or any(_attribute(own, name) == b"1" for name in DELEGATED) else None


def _attribute(folder: Path, name: str) -> bytes:
    try:
        return os.getxattr(folder, name)
    except OSError:
        return b""


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _reap(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def read_text(path: Path) -> str:
    """Return the text of a file; empty if it cannot be read."""
    return _read_bytes(path).decode()


SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where NCCL makes it, whatever its settings
NCCL_PREFIX = "nccl-"
"""Prefix of the names of NCCL's files. Gloo creates no files, and torch creates some only if processes share tensors.
"""


def sweep(folder: Path = SHARED_MEMORY, *, since: float | None = None) -> tuple[str, ...]:
    """Delete NCCL's files that belong to this user and that no process has open. Return their names.

    `since`: delete only files changed after this time, in seconds since the epoch. If it is None, files of any age are
    deleted, but root deletes none, because files of root may belong to other programs.
    """
    if since is None and os.geteuid() == 0:
        return ()
    deleted = []
    with contextlib.suppress(OSError):  # no such folder
        for entry in os.scandir(folder):
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                ours = entry.is_file(follow_symlinks=False) and status.st_uid == os.geteuid()
                recent = status.st_ctime >= (since or 0.0)
                if ours and recent and entry.name.startswith(NCCL_PREFIX) and _delete_unused(Path(entry.path)):
                    deleted.append(entry.name)
    return tuple(deleted)


def _delete_unused(path: Path) -> bool:
    """Delete a file unless another process has it open or mapped. Return whether it was deleted.

    The kernel grants a write lease only on an unused file, and counts processes of other containers too. If a process
    opens the file meanwhile, that process waits, and this process gets a signal, which it ignores.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)  # sent when a process opens the file; ignored
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        path.unlink()
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
