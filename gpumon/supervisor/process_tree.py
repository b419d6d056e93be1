"""Read which processes descend from which, and make this process inherit orphaned descendants."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
PROC = Path("/proc")


def become_subreaper() -> None:
    """Become the parent of every descendant that loses its own, whatever group or session it moved to."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children(pid: int) -> set[int]:
    """Return the pids of a process's children, zombies included."""
    lists = [*(PROC / str(pid) / "task").glob("*/children")]
    return {child for path in lists for child in _read_pids(path)} if lists else _children_by_parent(pid)


def descendants(*pids: int) -> set[int]:
    """Return the pids of the children of these processes, and of theirs."""
    below, parents = set[int](), list(pids)
    while parents:
        new = children(parents.pop()) - below
        below |= new
        parents += new
    return below


def stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; empty if the process has ended."""
    try:
        return (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _read_pids(path: Path) -> Iterator[int]:
    with contextlib.suppress(OSError):  # the thread has ended
        yield from map(int, path.read_text().split())


def _children_by_parent(pid: int) -> set[int]:
    """Return the children on a kernel without CONFIG_PROC_CHILDREN."""
    processes = (int(process.name) for process in PROC.glob("[0-9]*"))
    return {process for process in processes if stat(process)[1:2] == [str(pid)]}
