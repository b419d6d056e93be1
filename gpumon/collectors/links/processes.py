"""Processes that sit in the kernel and hold a GPU: asleep in state D, look after look, without having run.

Nothing is read that waits for a process's memory: its command line, its maps and its environment hang with it.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from gpumon.clock import boot_clock
from gpumon.collectors.links.files import UNSUPPORTED, Reach, Troubles
from gpumon.model.snapshot import StuckProcess

COLLECTOR = "processes"

MOST_PROCESSES = 16384
"""That are looked at; a host that has more is told so."""
MOST_FILES = 4096
"""Of one process."""
MOST_STUCK = 256
"""That are told."""
_GONE = UNSUPPORTED | {errno.ESRCH}
_HOST = "pid:[4026531836]"
"""The first PID namespace of any kernel (PROC_PID_INIT_INO)."""
_KERNEL_THREAD = 0x00200000
_DEVICE = re.compile(r"/dev/nvidia(\d*)")


class _Stat(NamedTuple):
    """What /proc/PID/stat says of a process or a thread."""

    state: str
    parent: str
    flags: int
    ran: tuple[str, ...]
    """When it was started, and how long it has run: the same again, it has not run."""
    threads: int


class _Asleep(NamedTuple):
    """A thread in state D."""

    ran: tuple[str, ...]
    since: float
    """Boot clock of the first look at which it was so."""
    gpus: frozenset[str] | None = None
    """Minor numbers of the GPUs that it holds; None: nothing of NVIDIA, or not looked yet."""


class Processes:
    """All processes of the host, or of the container. Remembers who was asleep at the last look."""

    def __init__(
        self, reach: Reach, leave_aside: Collection[str] = (), clock: Callable[[], float] = boot_clock
    ) -> None:
        self._files = reach(COLLECTOR)
        self._aside = COLLECTOR in leave_aside
        self._clock = clock
        self._kernel: set[str] = set()
        self._asleep: dict[str, _Asleep] = {}
        self.troubles = Troubles()
        self.denied = False
        """Nobody may see what other people's processes hold."""
        self.contained: bool | None = None
        """It sees the processes of a container alone, and so does NVML; None: nobody can tell."""

    def look(self) -> tuple[StuckProcess, ...] | None:
        """Those that are stuck now, however long; None when nobody can tell. Processes of the agent are none."""
        self.troubles, self.denied, self.contained = Troubles(), False, None
        if self._aside:
            return None
        try:
            return self._look()
        except OSError as error:
            self.troubles.note("proc", error)
            return None

    def _look(self) -> tuple[StuckProcess, ...] | None:
        pids = [name for name in self._files.names("proc") if name.isdecimal()]
        self.contained = self._link("proc/self/ns/pid") not in {_HOST, None}
        self.denied = not self._may_look()
        if self.denied:
            return None
        if len(pids) > MOST_PROCESSES:
            self.troubles.note("proc", OSError(errno.E2BIG, f"has more than {MOST_PROCESSES} processes"))
        asleep = {place: self._seen(place, stat) for place, stat in self._sleeping(pids[:MOST_PROCESSES])}
        self._asleep = asleep
        held = [
            StuckProcess(since=one.since, gpus=tuple(sorted(one.gpus)))
            for one in asleep.values()
            if one.gpus is not None
        ]
        return tuple(sorted(held, key=lambda one: one.since)[:MOST_STUCK])

    def _may_look(self) -> bool:
        """What is denied of the first process is denied of all that belong to somebody else."""
        try:
            self._files.link("proc/1/fd/0")
        except PermissionError:
            return False
        except OSError:
            pass  # it has closed its input, or is none of this tree
        return True

    def _sleeping(self, pids: Collection[str]) -> Iterator[tuple[str, _Stat]]:
        """Folders of threads in state D."""
        self._kernel &= set(pids)
        own = self._own()
        for pid in pids:
            stat = None if pid in self._kernel or pid in own else self._stat(f"proc/{pid}")
            if stat is None or stat.parent in own:
                continue
            if stat.flags & _KERNEL_THREAD:
                self._kernel.add(pid)
            elif stat.state == "D" or (stat.state == "Z" and stat.threads > 1):
                yield from self._threads(pid, every=stat.state == "Z")

    def _threads(self, pid: str, *, every: bool) -> Iterator[tuple[str, _Stat]]:
        """The first thread; of a process that was killed and cannot end, `every` one that is left."""
        try:
            names = self._files.names(f"proc/{pid}/task") if every else [pid]
        except OSError:
            return  # gone
        for name in names:
            place = f"proc/{pid}/task/{name}"
            stat = self._stat(place)
            if stat is not None and stat.state == "D":
                yield place, stat

    def _own(self) -> set[str]:
        """This process and the daemon: what the daemon has started, and could not end, it tells itself."""
        pid = self._link("proc/self")
        stat = self._stat(f"proc/{pid}") if pid else None
        return {one for one in (pid, stat and stat.parent) if one}

    def _seen(self, place: str, stat: _Stat) -> _Asleep:
        """Asleep as before, or anew. What it holds is looked up once, when it has not run between two looks."""
        before = self._asleep.get(place)
        if before is None or before.ran != stat.ran:
            return _Asleep(stat.ran, self._clock())
        return before if before.gpus is not None else before._replace(gpus=self._held(place))

    def _held(self, place: str) -> frozenset[str] | None:
        """A process that is ending has closed its files: the driver is in its kernel stack, if one may see that."""
        found = list(self._devices(f"{place}/fd"))
        if found:
            return frozenset(minor for minor in found if minor)
        try:
            return frozenset() if "[nvidia" in self._files.read(f"{place}/stack") else None
        except OSError:
            return None  # gone, or for root alone

    def _devices(self, folder: str) -> Iterator[str]:
        """Numbers of NVIDIA's device nodes that are open; empty for those that stand for no GPU."""
        try:
            names = self._files.names(folder)
        except OSError:
            return  # gone
        for name in names[:MOST_FILES]:
            device = _DEVICE.match(self._link(f"{folder}/{name}") or "")
            if device:
                yield device[1]

    def _link(self, path: str) -> str | None:
        try:
            return self._files.link(path)
        except OSError:
            return None  # gone, or closed meanwhile

    def _stat(self, folder: str) -> _Stat | None:
        """None of what is gone."""
        try:
            text = self._files.read(f"{folder}/stat")
        except OSError as error:
            if error.errno not in _GONE:
                self.troubles.note(anonymous(f"{folder}/stat"), error)
            return None
        fields = text.rpartition(")")[2].split()
        return _Stat(fields[0], fields[1], int(fields[6]), (fields[19], fields[11], fields[12]), int(fields[17]))


def anonymous(path: str) -> str:
    """A path of /proc without the number of a process: who reads what the agent says may not know it."""
    return re.sub(r"/\d+", "/*", path)
