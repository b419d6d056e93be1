"""Reads the available memory of the host and the agent's cgroup, and deletes shared memory of killed ranks."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path


def available_bytes(root: Path = Path("/")) -> float | None:
    """Return the available bytes of memory: the minimum over the host and the agent's cgroups; None if unknown."""
    return min((*_free_on_host(root), *_free_in_cgroups(root)), default=None)


def _free_on_host(root: Path) -> Iterator[float]:
    for line in _text(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            yield float(rest.split()[0]) * 1024


def _free_in_cgroups(root: Path) -> Iterator[float]:
    """Yield the free bytes of each cgroup (v2) with a memory limit: the agent's own cgroup and those above it."""
    folders = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        if line.startswith("0::"):
            own = folders / line.removeprefix("0::").lstrip("/")
            for folder in (own, *own.parents):
                yield from _free_in_cgroup(folder)
                if folder == folders:
                    return


def _free_in_cgroup(folder: Path) -> Iterator[float]:
    limit, used = _text(folder / "memory.max").strip(), _text(folder / "memory.current").strip()
    if limit.isdigit() and used.isdigit():
        yield max(0.0, float(limit) - max(0.0, float(used) - _reclaimable(folder)))


def _reclaimable(folder: Path) -> float:
    """Return the bytes of inactive file pages. The kernel counts them as used memory but reclaims them first."""
    values = dict(line.split(" ", 1) for line in _text(folder / "memory.stat").splitlines() if " " in line)
    cached = values.get("inactive_file", "").strip()
    return float(cached) if cached.isdigit() else 0.0


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


FOLDER = Path("/dev/shm")  # noqa: S108 - where NCCL makes it, whatever its settings
PREFIX = "nccl-"
"""Prefix of the names of NCCL's files. Gloo creates no files, and torch creates some only if processes share tensors.
"""


def sweep(folder: Path = FOLDER, *, since: float | None = None) -> tuple[str, ...]:
    """Delete NCCL's files that belong to this user and that no process has open. Return their names.

    `since`: delete only files changed after this time, in seconds since the epoch. If it is None, files of any age are
    deleted, but root deletes none, because files of root may belong to other programs.
    """
    if since is None and os.geteuid() == 0:
        return ()
    return tuple(path.name for path in _candidates(folder, since or 0.0) if _delete_unused(path))


def _candidates(folder: Path, since: float) -> Iterator[Path]:
    with contextlib.suppress(OSError):  # no such folder
        for entry in os.scandir(folder):
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_ctime >= since
                if ours and entry.name.startswith(PREFIX):
                    yield Path(entry.path)


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
