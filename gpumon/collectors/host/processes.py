"""Find processes on GPUs that are stuck in the kernel: in state D at two successive polls, without running in between.

Also detect the process of the fabric manager, and whether this process is in the host's PID namespace.

Files that need a process's memory map (command line, maps, environment) are not read, because for a stuck process the
read may block too.
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

from gpumon.collectors.host.reader import UNSUPPORTED, Turn, list_names, mask_pids, read_link, read_text
from gpumon.model.snapshot import ProcessReadings, StuckProcess

MAX_PROCESSES = 16384
"""Maximum number of processes that are examined. If there are more, a read error is reported."""
MAX_FILES = 4096
"""Maximum number of file descriptors of a process that are examined."""
MAX_THREADS = 256
"""Maximum number of threads of a process whose kernel stacks are examined."""
MAX_STUCK = 256
"""Maximum number of stuck processes that are reported."""
_GONE = UNSUPPORTED | {errno.ESRCH}
_HOST = "pid:[4026531836]"
"""Name of the initial PID namespace, which is the same on every kernel (PROC_PID_INIT_INO)."""
_KERNEL_THREAD = 0x00200000
FABRIC_MANAGER = "nv-fabricmanager"[:15]
"""Name of the fabric manager's process, truncated to 15 characters like all process names in the kernel."""
_DEVICE = re.compile(r"(\d+) nvidia", re.MULTILINE)
"""Matches the lines of /proc/devices with the major numbers of NVIDIA devices, such as GPUs and NVSwitches."""
_GPUS = re.compile(r"(\d+) nvidia(?:-frontend)?$", re.MULTILINE)
_CONTROL_MINOR = 254
"""First minor number that is not a GPU's: 254 is /dev/nvidia-modeset and 255 /dev/nvidiactl."""
_INTENDED = re.compile(r"\b(?:kernel_clone|_*do_fork|wait_for_vfork_done|__refrigerator)\b")
"""Kernel functions in which a process sleeps in state D on purpose: it waits for the child of a vfork, or is frozen."""
_DRIVER = re.compile(r"os_(?:acquire|wait|delay|schedule)|_*nv(?:idia|kms|link|_|\d)|rm_|uvm_")
_NOT_DRIVER = re.compile(
    r"_*fuse_|request_wait_answer|rpc_|nfs|handle_userfault|folio_|wait_on_page|io_schedule|filemap_|ptlrpc_|cl_|osc_|ll_"
)
"""Kernel functions of NVIDIA's driver and of file systems, for /proc/PID/wchan if the kernel stack cannot be read."""


class _Stat(NamedTuple):
    """Selected fields of /proc/PID/stat of a process or thread."""

    name: str
    state: str
    parent: str
    flags: int
    ran: tuple[str, ...]
    """Start time, user time and system time in clock ticks. If they are unchanged, the thread has not run."""
    threads: int


class _Asleep(NamedTuple):
    """A thread that was in state D at the last poll, for comparison with the next poll."""

    ran: tuple[str, ...]
    since: float
    """Time on the boot clock of the first poll that found the thread asleep."""
    stuck: StuckProcess | None = None
    """The process to report as stuck; None if it was not examined, or need not be reported."""


class ProcessReader:
    """Finds stuck processes of the host or container. Keeps the threads that were in state D at the last poll."""

    def __init__(self) -> None:
        self._kernel: set[str] = set()
        self._asleep: dict[str, _Asleep] = {}

    def __call__(self, turn: Turn) -> ProcessReadings:
        """Return the stuck processes that have an NVIDIA device open or sleep in NVIDIA's driver.

        Return at most MAX_STUCK, those blocked longest first, without this process, the daemon and their children; None
        if processes cannot be examined. `since` of a process is that of its thread that has been blocked longest.
        """
        self._turn, self._files = turn, turn.root
        try:
            pids = [name for name in self._files.names("proc") if name.isdecimal()]
        except OSError as error:
            turn.errors.note("proc", error)
            return ProcessReadings()
        if len(pids) > MAX_PROCESSES:
            turn.errors.note("proc", OSError(errno.E2BIG, f"has more than {MAX_PROCESSES} processes"))
        namespace = read_link(self._files, "proc/self/ns/pid")
        # Any user may read names and states: a fabric manager in a container is found without permissions too.
        sleeping = list(self._sleeping_threads(pids[:MAX_PROCESSES]))
        denied = False
        try:
            self._files.link("proc/1/fd/0")
        except OSError as error:  # other errors: its input is closed, or it is not in this tree
            denied = isinstance(error, PermissionError)
        turn.errors.denied |= denied
        return ProcessReadings(
            stuck=None if denied else self._stuck(sleeping),
            contained=namespace != _HOST if namespace else None,
            fabric_manager=self._fabric_manager,
        )

    def _stuck(self, sleeping: Collection[tuple[str, _Stat]]) -> tuple[StuckProcess, ...]:
        self._asleep = {place: self._record(place, stat) for place, stat in sleeping}
        stuck: dict[str, StuckProcess] = {}
        for place, thread in sorted(self._asleep.items(), key=lambda item: item[1].since):
            if thread.stuck is not None:
                stuck.setdefault(place.split("/")[1], thread.stuck)
        return tuple(stuck.values())[:MAX_STUCK]

    def _sleeping_threads(self, pids: Collection[str]) -> Iterator[tuple[str, _Stat]]:
        """Yield the folder in /proc and the stat fields of each thread in state D, and set `_fabric_manager`.

        Only the main thread of a live process is checked, but all threads of a zombie. Kernel threads and processes of
        the agent are left out.
        """
        self._kernel &= set(pids)
        # With hidepid=2 only processes of the same user are listed: process 1, of root, is not among them.
        self._fabric_manager = False if "1" in pids else None
        this = read_link(self._files, "proc/self")
        this_stat = self._stat(f"proc/{this}") if this else None
        own = {pid for pid in (this, this_stat and this_stat.parent) if pid}
        for pid in pids:
            stat = None if pid in self._kernel or pid in own else self._stat(f"proc/{pid}")
            if stat is None or stat.parent in own:
                continue
            if stat.name == FABRIC_MANAGER and stat.state != "Z":
                status = read_text(self._files, f"proc/{pid}/status")
                # The name alone proves nothing, because any user can choose it.
                if re.search(r"^Uid:\t0\t", status, re.MULTILINE):
                    self._fabric_manager = True
            if stat.flags & _KERNEL_THREAD:
                self._kernel.add(pid)
            elif stat.state == "D" or (stat.state == "Z" and stat.threads > 1):
                yield from self._threads(pid, every=stat.state == "Z")

    def _threads(self, pid: str, *, every: bool) -> Iterator[tuple[str, _Stat]]:
        """Yield folder and stat fields of the main thread or, with `every`, of all threads, if they are in state D."""
        for name in list_names(self._files, f"proc/{pid}/task") if every else [pid]:
            place = f"proc/{pid}/task/{name}"
            stat = self._stat(place)
            if stat is not None and stat.state == "D":
                yield place, stat

    def _record(self, place: str, stat: _Stat) -> _Asleep:
        """Return what to remember about a thread in state D, whose folder is `place`.

        If the thread has not run since the last poll, examine it, unless an earlier poll has already found that its
        process sleeps in the driver. A process that sleeps in NVIDIA's driver is stuck: if it is exiting, it may have
        closed its files. Another process is stuck if it has an NVIDIA device open and does not sleep on purpose.
        """
        before = self._asleep.get(place)
        if before is None or before.ran != stat.ran:
            return _Asleep(stat.ran, self._turn.at)
        if before.stuck is not None and before.stuck.in_driver:
            return before
        devices = list(self._devices(f"{place}/fd"))
        in_driver = self._is_in_driver(place)
        location = read_text(self._files, f"{place}/stack") or read_text(self._files, f"{place}/wchan")
        if not in_driver and (not devices or _INTENDED.search(location)):
            return before._replace(stuck=None)
        gpus = tuple(sorted({minor for minor in devices if minor}))
        return before._replace(stuck=StuckProcess(since=before.since, gpus=gpus, in_driver=in_driver))

    def _is_in_driver(self, place: str) -> bool | None:
        """Return whether the process sleeps in NVIDIA's driver, by its kernel stacks or its wchan; None if unknown."""
        process = place.rpartition("/")[0]
        with contextlib.suppress(OSError):  # it has ended, or only root may read it
            self._files.read(f"{place}/stack")
            threads = self._files.names(process)[:MAX_THREADS]
            return any("[nvidia" in read_text(self._files, f"{process}/{thread}/stack") for thread in threads)
        function = read_text(self._files, f"{place}/wchan")
        return True if _DRIVER.match(function) else False if _NOT_DRIVER.match(function) else None

    def _devices(self, folder: str) -> Iterator[str]:
        """Yield the minor number of each open GPU device, and "" for each other open NVIDIA device."""
        drivers = read_text(self._files, "proc/devices")
        majors, gpus = ({int(major) for major in kind.findall(drivers)} for kind in (_DEVICE, _GPUS))
        for name in list_names(self._files, folder)[:MAX_FILES]:  # none if it has ended
            major, minor = self._device(f"{folder}/{name}") or (None, 0)
            if major in majors:
                yield str(minor) if major in gpus and minor < _CONTROL_MINOR else ""

    def _device(self, path: str) -> tuple[int, int] | None:
        """Return the numbers of an open /dev/nvidia* file; None for other files, whose access may block."""
        if not read_link(self._files, path).startswith("/dev/nvidia"):
            return None
        try:
            return self._files.device(path)
        except OSError:
            return None  # it has ended, or the file was closed

    def _stat(self, folder: str) -> _Stat | None:
        """Return the fields of the file `stat` in this folder; None if the process has ended or the read fails."""
        try:
            text = self._files.read(f"{folder}/stat")
        except OSError as error:
            if error.errno not in _GONE:
                self._turn.errors.note(mask_pids(f"{folder}/stat"), error)
            return None
        name, fields = text.partition("(")[2].rpartition(")")[0], text.rpartition(")")[2].split()
        return _Stat(name, fields[0], fields[1], int(fields[6]), (fields[19], fields[11], fields[12]), int(fields[17]))
