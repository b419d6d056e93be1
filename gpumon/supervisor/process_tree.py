"""Reads children, memory and open files of processes, and makes this process the parent of orphaned descendants."""

from __future__ import annotations

import contextlib
import ctypes
import resource
from collections.abc import Iterable
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
PROC = Path("/proc")
_RSS = 21
"""Index in the result of stat() of the number of resident pages, the 24th field of /proc/PID/stat."""


def become_subreaper() -> None:
    """Make this process the parent of each descendant whose parent ends from now on, in any group or session."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children(pid: int) -> set[int]:
    """Return the pids of the children of a process, including zombies."""
    lists = [*(PROC / str(pid) / "task").glob("*/children")]
    if lists:
        below = set[int]()
        for path in lists:
            with contextlib.suppress(OSError):  # the thread has ended
                below.update(map(int, path.read_text().split()))
        return below
    # a kernel without CONFIG_PROC_CHILDREN
    processes = (int(process.name) for process in PROC.glob("[0-9]*"))
    return {process for process in processes if stat(process)[1:2] == [str(pid)]}


def descendants(*pids: int) -> set[int]:
    """Return the pids of all descendants of these processes, including zombies."""
    below, parents = set[int](), list(pids)
    while parents:
        new = children(parents.pop()) - below
        below |= new
        parents += new
    return below


def stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state (third field) on; an empty list if the file cannot be read."""
    try:
        with (PROC / str(pid) / "stat").open("rb", buffering=0) as file:
            return file.read(4096).rpartition(b")")[2].decode().split()
    except OSError:
        return []


def open_files(pid: int) -> set[str]:
    """Return the paths of the files that a process has open; none if it has ended or may not be inspected."""
    paths = set[str]()
    with contextlib.suppress(OSError):
        for entry in (PROC / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):  # the descriptor was closed in the meantime
                paths.add(str(entry.readlink()))
    return paths


def resident_memory(pids: Iterable[int]) -> float:
    """Return the total resident memory of these processes in bytes. A page that several share is counted for each."""
    return float(resource.getpagesize() * sum(int(fields[_RSS]) for pid in pids if (fields := stat(pid))))
