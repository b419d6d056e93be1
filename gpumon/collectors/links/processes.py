"""Find processes that hold a GPU and are stuck in the kernel: in state D at every poll, without having run in between.

Files that need a process's memory map (command line, maps, environment) are not read, because the read would block too.
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from gpumon.clock import boot_clock
from gpumon.collectors.links.files import UNSUPPORTED, Reach, ReadErrors
from gpumon.model.snapshot import StuckProcess

COLLECTOR = "processes"

MAX_PROCESSES = 16384
"""Maximum number of processes that are examined; more are reported as an error."""
MAX_FILES = 4096
"""Maximum number of file descriptors examined a process."""
MAX_THREADS = 256
"""Maximum number of threads whose stacks are examined a process."""
MAX_STUCK = 256
"""Maximum number of stuck processes reported."""
_GONE = UNSUPPORTED | {errno.ESRCH}
_HOST = "pid:[4026531836]"
"""Name of the initial PID namespace, which is the same on every kernel (PROC_PID_INIT_INO)."""
_KERNEL_THREAD = 0x00200000
FABRIC_MANAGER = "nv-fabricmanager"[:15]
"""Name of the fabric manager's process, as long as the kernel keeps it."""
_DEVICE = re.compile(r"(\d+) nvidia", re.MULTILINE)
"""Lines of /proc/devices with the major numbers of NVIDIA device nodes, of GPUs and others."""
_GPUS = re.compile(r"(\d+) nvidia(?:-frontend)?$", re.MULTILINE)
_CONTROL_MINOR = 254
"""First minor number that is not a GPU: from here on are /dev/nvidia-modeset and /dev/nvidiactl."""
_INTENDED = re.compile(r"\b(?:kernel_clone|_*do_fork|wait_for_vfork_done|__refrigerator)\b")
"""Kernel functions in which a process sleeps in state D for as long as another process wants: vfork and the freezer."""
_DRIVER = re.compile(r"os_(?:acquire|wait|delay|schedule)|_*nv(?:idia|kms|link|_|\d)|rm_|uvm_")
_NOT_DRIVER = re.compile(
    r"_*fuse_|request_wait_answer|rpc_|nfs|handle_userfault|folio_|wait_on_page|io_schedule|filemap_|ptlrpc_|cl_|osc_|ll_"
)
"""Names of functions of NVIDIA's driver, and of file systems. They decide if only /proc/PID/wchan can be read."""


class _Stat(NamedTuple):
    """Fields of /proc/PID/stat of a process or thread."""

    name: str
    state: str
    parent: str
    flags: int
    ran: tuple[str, ...]
    """Start time and run times in clock ticks. If they are unchanged, the thread has not run."""
    threads: int


class _Asleep(NamedTuple):
    """A thread in state D."""

    ran: tuple[str, ...]
    since: float
    """Time on the boot clock of the first poll that found the thread asleep."""
    stuck: StuckProcess | None = None
    """None if the thread holds no NVIDIA device, sleeps as intended, or was not examined."""


class ProcessReader:
    """Finds stuck processes of the host or container. It remembers the threads that slept at the last poll."""

    def __init__(
        self, reach: Reach, quarantined: Collection[str] = (), clock: Callable[[], float] = boot_clock
    ) -> None:
        self._files = reach(COLLECTOR)
        self._quarantined = COLLECTOR in quarantined
        self._clock = clock
        self._kernel: set[str] = set()
        self._asleep: dict[str, _Asleep] = {}
        self.read_errors = ReadErrors()
        self.denied = False
        """Whether the open files of other users' processes cannot be read."""
        self.fabric_manager: bool | None = None
        """Whether a fabric manager runs, as a service or in a container; None if processes cannot be read."""
        self.contained: bool | None = None
        """Whether only processes of a container are visible, to NVML as well; None if unknown.
        """

    def poll(self) -> tuple[StuckProcess, ...] | None:
        """Return the stuck processes that hold a GPU; None if that cannot be determined.

        The agent's own are left out.
        """
        self.read_errors, self.denied, self.contained, self.fabric_manager = ReadErrors(), False, None, None
        if self._quarantined:
            return None
        try:
            return self._examine()
        except OSError as error:
            self.read_errors.note("proc", error)
            return None

    def _examine(self) -> tuple[StuckProcess, ...] | None:
        pids = [name for name in self._files.names("proc") if name.isdecimal()]
        self.contained = self._link("proc/self/ns/pid") not in {_HOST, None}
        self.denied = not self._may_examine()
        if self.denied:
            return None
        if len(pids) > MAX_PROCESSES:
            self.read_errors.note("proc", OSError(errno.E2BIG, f"has more than {MAX_PROCESSES} processes"))
        asleep = {place: self._record(place, stat) for place, stat in self._sleeping(pids[:MAX_PROCESSES])}
        self._asleep = asleep
        stuck = [thread.stuck for thread in asleep.values() if thread.stuck is not None]
        return tuple(sorted(stuck, key=lambda process: process.since)[:MAX_STUCK])

    def _may_examine(self) -> bool:
        """Return whether open files of other users' processes can be read. Process 1 is tried."""
        try:
            self._files.link("proc/1/fd/0")
        except PermissionError:
            return False
        except OSError:
            pass  # its input is closed, or it is not in this tree
        return True

    def _sleeping(self, pids: Collection[str]) -> Iterator[tuple[str, _Stat]]:
        """Yield folder and stat of each thread in state D, except kernel threads and the agent's own processes."""
        self._kernel &= set(pids)
        own, self.fabric_manager = self._own(), False
        for pid in pids:
            stat = None if pid in self._kernel or pid in own else self._stat(f"proc/{pid}")
            if stat is None or stat.parent in own:
                continue
            if stat.name == FABRIC_MANAGER and stat.state != "Z" and self._is_of_root(pid):
                self.fabric_manager = True
            if stat.flags & _KERNEL_THREAD:
                self._kernel.add(pid)
            elif stat.state == "D" or (stat.state == "Z" and stat.threads > 1):
                yield from self._threads(pid, every=stat.state == "Z")

    def _is_of_root(self, pid: str) -> bool:
        """Return whether the process runs as root: any user can choose the name of a process."""
        return re.search(r"^Uid:\t0\t", self._text(f"proc/{pid}/status"), re.MULTILINE) is not None

    def _threads(self, pid: str, *, every: bool) -> Iterator[tuple[str, _Stat]]:
        """Yield the main thread if it is in state D. `every`: all such threads, of a killed process that cannot end."""
        try:
            names = self._files.names(f"proc/{pid}/task") if every else [pid]
        except OSError:
            return  # it has ended
        for name in names:
            place = f"proc/{pid}/task/{name}"
            stat = self._stat(place)
            if stat is not None and stat.state == "D":
                yield place, stat

    def _own(self) -> set[str]:
        """Return the pids of this process and of the daemon."""
        pid = self._link("proc/self")
        stat = self._stat(f"proc/{pid}") if pid else None
        return {pid for pid in (pid, stat and stat.parent) if pid}

    def _record(self, place: str, stat: _Stat) -> _Asleep:
        """Return the updated record of a sleeping thread.

        Once it has not run between two polls, it is examined until its process is found in the driver.
        """
        before = self._asleep.get(place)
        if before is None or before.ran != stat.ran:
            return _Asleep(stat.ran, self._clock())
        if before.stuck is not None and before.stuck.in_driver:
            return before
        return before._replace(stuck=self._examined(place, before.since))

    def _examined(self, place: str, since: float) -> StuckProcess | None:
        """Return the thread as stuck; None if it holds no NVIDIA device, or sleeps as intended.

        An exiting process has closed its files already. It counts as holding a GPU if its kernel stack is in the
        driver.
        """
        devices = list(self._devices(f"{place}/fd"))
        in_driver = self._in_driver(place)
        if not in_driver and (not devices or _INTENDED.search(self._where(place))):
            return None
        return StuckProcess(since=since, gpus=tuple(sorted({minor for minor in devices if minor})), in_driver=in_driver)

    def _in_driver(self, place: str) -> bool | None:
        """Return whether any thread of the process sleeps in the NVIDIA driver; None if unknown."""
        process = place.rpartition("/")[0]
        with contextlib.suppress(OSError):  # it has ended, or only root may read it
            self._files.read(f"{place}/stack")
            threads = self._files.names(process)[:MAX_THREADS]
            return any("[nvidia" in self._text(f"{process}/{thread}/stack") for thread in threads)
        function = self._text(f"{place}/wchan")
        return True if _DRIVER.match(function) else False if _NOT_DRIVER.match(function) else None

    def _where(self, place: str) -> str:
        """Return the thread's kernel stack; if it cannot be read, the function in which it sleeps."""
        return self._text(f"{place}/stack") or self._text(f"{place}/wchan")

    def _devices(self, folder: str) -> Iterator[str]:
        """Yield the minor numbers of open NVIDIA devices; "" for a device that is not a GPU.

        Device numbers are compared too, because any process can open another file with the name of a device.
        """
        drivers = self._text("proc/devices")
        majors, gpus = ({int(major) for major in kind.findall(drivers)} for kind in (_DEVICE, _GPUS))
        try:
            names = self._files.names(folder)
        except OSError:
            return  # it has ended
        for name in names[:MAX_FILES]:
            major, minor = self._device(f"{folder}/{name}") or (None, 0)
            if major in majors:
                yield str(minor) if major in gpus and minor < _CONTROL_MINOR else ""

    def _device(self, path: str) -> tuple[int, int] | None:
        """Return major and minor number of an open /dev/nvidia file; None for others, which may block a read."""
        if not (self._link(path) or "").startswith("/dev/nvidia"):
            return None
        try:
            return self._files.device(path)
        except OSError:
            return None  # it has ended, or the file was closed

    def _text(self, path: str) -> str:
        try:
            return self._files.read(path)
        except OSError:
            return ""

    def _link(self, path: str) -> str | None:
        try:
            return self._files.link(path)
        except OSError:
            return None  # it has ended, or the file was closed

    def _stat(self, folder: str) -> _Stat | None:
        """Return the fields of /proc/PID/stat; None if the process has ended."""
        try:
            text = self._files.read(f"{folder}/stat")
        except OSError as error:
            if error.errno not in _GONE:
                self.read_errors.note(anonymous(f"{folder}/stat"), error)
            return None
        name, fields = text.partition("(")[2].rpartition(")")[0], text.rpartition(")")[2].split()
        return _Stat(name, fields[0], fields[1], int(fields[6]), (fields[19], fields[11], fields[12]), int(fields[17]))


def anonymous(path: str) -> str:
    """Replace process ids in a path below /proc, because readers of the API must not see them."""
    return re.sub(r"/\d+", "/*", path)
