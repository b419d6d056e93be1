"""A control group of the ranks' own, where the agent's was delegated to it: whatever they start can be found there.

Of cgroup v2, and without controllers: so the agent may stay in the group above it, and nothing of the unit's limits
changes. Memory needs no group, since ranks are what the kernel kills first (`die_first` of the worker).
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from pathlib import Path

from gpumon.probe.runner.orphans import is_other_and_lives, own_mark

log = logging.getLogger("gpumon.probe.core")

MOUNTS = ("sys/fs/cgroup", "sys/fs/cgroup/unified")
NAME = "probe-"
"""Begins the name of one; the mark of its agent follows."""
DELEGATED = ("user.delegate", "trusted.delegate")
"""Marks of systemd: root could write everywhere, and must not."""


class Group:
    """One that is made for a pass, and removed after it. Errors are no reason not to run: then it holds nobody."""

    searched = True
    """`pids` are always all that there are."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, pid: int) -> None:
        """Before it starts anything, so that all of that is added with it."""
        try:
            (self._path / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            log.warning("a rank is in no control group of its own", extra={"pid": pid, "error": str(error)})

    def pids(self) -> frozenset[int]:
        """Of what is there and not ended."""
        found = frozenset(map(int, _read(self._path / "cgroup.procs").split()))
        return found - {0}  # one that has no pid here; to signal that would be to signal ourselves

    def kill(self) -> None:
        try:
            (self._path / "cgroup.kill").write_text("1")
        except OSError:  # a kernel before 5.14
            for pid in self.pids():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)

    def remove(self) -> None:
        """Once nobody is there. What is left is taken by the next pass, or by the next agent."""
        with contextlib.suppress(OSError):
            self._path.rmdir()


def make_group(root: Path = Path("/")) -> Group | None:
    """None where nothing was delegated."""
    end_left(root)
    own = _delegated(root)
    if own is None:
        return None
    path = own / f"{NAME}{own_mark()}"
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        log.warning("no control group for the ranks", extra={"path": str(path), "error": str(error)})
        return None
    return Group(path)


def end_left(root: Path = Path("/")) -> None:
    """Kill what is in groups of agents that were killed: whatever it became, only ranks can have started it."""
    own = _delegated(root)
    for path in () if own is None else own.glob(f"{NAME}*"):
        mark, left = path.name.removeprefix(NAME), Group(path)
        if mark != own_mark() and not is_other_and_lives(mark):
            pids = left.pids()
            if pids:
                left.kill()
                log.warning("killed what ranks of an earlier agent have left", extra={"pids": sorted(pids)})
        left.remove()


def _delegated(root: Path) -> Path | None:
    own = _own(root)
    return own if own is not None and _is_delegated(own) else None


def _own(root: Path) -> Path | None:
    """Folder of the group of cgroup v2 in which this process is."""
    lines = _read(root / "proc/self/cgroup").splitlines()
    place = next((line.removeprefix("0::").lstrip("/") for line in lines if line.startswith("0::")), None)
    if place is None:
        return None
    folders = (root / mount / place for mount in MOUNTS)
    return next((one for one in folders if str(os.getpid()) in _read(one / "cgroup.procs").split()), None)


def _is_delegated(folder: Path) -> bool:
    """Another user than root can write only in what it was given."""
    writable = all(os.access(one, os.W_OK, effective_ids=True) for one in (folder, folder / "cgroup.procs"))
    return writable and (os.geteuid() != 0 or any(_mark(folder, name) == b"1" for name in DELEGATED))


def _mark(folder: Path, name: str) -> bytes:
    try:
        return os.getxattr(folder, name)
    except OSError:
        return b""


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
