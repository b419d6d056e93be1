"""Makes the sampler processes close the GPUs whose release was requested by a client or by the marker file.

While the marker file exists and is not too old, the GPU that it names, or the whole node, is released.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpumon.clock import boot_clock
from gpumon.model import durations
from gpumon.model.bus_id import parse_bus_id
from gpumon.model.instant import Instant
from gpumon.model.request import AuditEntry, DeviceHolder, RequestResult
from gpumon.model.time_window import (
    DEADLINE,
    MARKER,
    NODE,
    TimeWindow,
    WindowKind,
    WindowRequest,
    WindowsEnded,
    in_force,
    new_window,
    released_scopes,
)
from gpumon.runner.runs import ProbeRuns
from gpumon.services.time_windows import Completion
from gpumon.state.messages import ReleaseHolders
from gpumon.state.report import Report
from gpumon.supervisor.loop import Loop
from gpumon.supervisor.process_tree import children, open_files
from gpumon.supervisor.sampler_supervisor import SamplerSupervisor

log = logging.getLogger("gpumon.release")

FOLLOW_SECONDS = 0.5
"""Interval in seconds at which `DriverRelease.follow` reads the marker file and applies the releases in force."""
HOLDER_SECONDS = 0.1
"""Interval in seconds at which a waiting release request checks which processes still have a GPU open."""
RECALL_SECONDS = 5.0
"""Maximum seconds to delay the start of the first sampler until the stored releases have been read. A hung disk must
not prevent monitoring.
"""
RECALL_POLL_SECONDS = 0.02
DEVICE_NODES = "/dev/nvidia"
"""Prefix of the paths of the NVIDIA driver's device nodes. In the path of a GPU's node, its minor number follows."""
MAX_BYTES = 4096
ABSENT = (errno.ENOENT, errno.ENOTDIR)
SYNTAX = "write nothing, or for=DURATION, gpu=GPU, or both"


class DriverRelease:
    """Service that makes the sampler processes close released GPUs. Use from the loop's thread."""

    answer_seconds = 15.0
    """Maximum seconds until a release request is answered. By then, a child process has ended or is reported as stuck
    (Deadlines.grace and Deadlines.kill).
    """

    def __init__(
        self,
        loop: Loop,
        marker: MarkerWatch,
        *,
        samplers: SamplerSupervisor,
        probing: ProbeRuns,
        latest: Callable[[], Report],
        publish: Callable[[TimeWindow | WindowsEnded | ReleaseHolders], None],
        store_failed: Callable[[], bool],
    ) -> None:
        """Create the service. `store_failed` returns True if the stored windows cannot be read now."""
        self._loop = loop
        self._marker = marker
        self._samplers = samplers
        self._probing = probing
        self._latest = latest
        self._publish = publish
        self._store_failed = store_failed
        self._scopes: frozenset[str] = frozenset()
        """Bus ids of the released GPUs, as last passed to the samplers; NODE stands for all GPUs."""
        self._closed = False
        """True once no process of the agent had a released GPU open; valid until the released GPUs (`_scopes`) change.
        """
        self._reported: frozenset[int] = frozenset()
        """Ids of the processes that wrongly have a released GPU open, about which an error was logged."""
        self._stopping = False

    def start(self) -> None:
        """Start the first sampler when the marker file and the stored releases are read (see RECALL_SECONDS)."""
        self._start_samplers(boot_clock() + RECALL_SECONDS)

    def apply(self, max_seconds: float) -> None:
        self._marker.max_seconds = max_seconds

    def stop(self) -> None:
        """Make `follow` do nothing from now on, because the agent is stopping."""
        self._stopping = True

    @property
    def notice(self) -> str | None:
        """Return which processes prevent a release, else why the marker file cannot be used; None without a problem."""
        held = [
            holder.description for holder in self._latest().inventory.release_holders if holder.pid in self._reported
        ]
        return f"released, but still open in {'; '.join(held)}" if held else self._marker.problem or None

    def follow(self) -> None:
        """Apply the marker file and the releases in force: close the released GPUs, and reopen the others.

        Publish which processes of the agent still have a released GPU open.
        """
        if self._stopping:
            return
        self._follow_marker()
        # `state.reduce` does the same, but only when a message arrives, and few arrive while no sampler runs.
        releases, now = in_force(self._latest().windows, WindowKind.RELEASE), boot_clock()
        self._end(frozenset(window.id for window in releases if window.deadline.at <= now), DEADLINE)
        windows = self._latest().windows
        scopes = released_scopes(windows)
        self._samplers.release(scopes)
        holders = self._holders(scopes)
        self._closed = not holders or (self._closed and scopes == self._scopes)
        self._scopes = scopes
        wrong = {holder.pid: holder.description for holder in holders if holder.stuck or self._closed}
        for pid in wrong.keys() - self._reported:
            log.error("a released GPU is still open", extra={"holder": wrong[pid]})
        self._reported = frozenset(wrong)
        if holders != self._latest().inventory.release_holders:
            self._publish(ReleaseHolders(holders=holders))
        marked = any(window.by == MARKER for window in in_force(windows, WindowKind.RELEASE))
        self._marker.report_done(done=marked and not holders)

    def completion(self, window: TimeWindow, /) -> Completion:
        scope, result, poll_at = frozenset({window.bus_id}), None, 0.0

        def poll(late: bool) -> RequestResult | None:  # noqa: FBT001 - the signature of Completion
            nonlocal result, poll_at
            if late or boot_clock() >= poll_at:
                poll_at = boot_clock() + HOLDER_SECONDS
                self.follow()
                holders = self._holders(scope)
                complete = late or all(holder.stuck for holder in holders)
                result = RequestResult(holders=holders) if complete else None
            return result

        return poll

    def _start_samplers(self, start_by: float) -> None:
        if self._stopping:
            return
        if self._latest().agent.restored or self._store_failed() or boot_clock() >= start_by:
            self.follow()
            self._samplers.start()
            self._loop.every(FOLLOW_SECONDS, self.follow)
        else:
            self._loop.call_after(RECALL_POLL_SECONDS, lambda: self._start_samplers(start_by))

    def _follow_marker(self) -> None:
        wanted = self._marker.read(self._latest().boot_id, self._bus_id)
        marked = [window for window in in_force(self._latest().windows, WindowKind.RELEASE) if window.by == MARKER]
        stale = frozenset(window.id for window in marked if wanted is None or window.bus_id != wanted.bus_id)
        if (
            wanted is not None
            and wanted.deadline.at > boot_clock()
            and wanted.id not in {window.id for window in marked}
        ):
            self._publish(wanted)  # replaces the window of the same scope
        self._end(stale, MARKER)

    def _end(self, ids: frozenset[str], by: str) -> None:
        if ids:
            self._publish(WindowsEnded(ids=ids, by=by, time=Instant.now(self._latest().boot_id)))

    def _bus_id(self, name: str) -> str | None:
        """Return the bus id of the GPU with this uuid, index or PCI address; None if the node has no such GPU.

        Before the GPUs have been read, return any PCI address as the bus id, and None for a uuid or index.
        """
        report = self._latest()
        gpu = report.gpu(name)
        if gpu is not None:
            return gpu.bus_id
        return None if report.gpus else parse_bus_id(name)

    def _holders(self, scopes: frozenset[str]) -> tuple[DeviceHolder, ...]:
        """Return the samplers, ranks and other processes of the agent that have one of these GPUs open."""
        if not scopes:
            return ()
        holders = [*self._samplers.holders(scopes), *self._probing.host.holders()]
        listed = {holder.pid for holder in holders}
        states = (self._latest().gpu(bus_id) for bus_id in scopes if bus_id != NODE)
        minors = [state.gpu.minor for state in states if state is not None]
        nodes = {f"{DEVICE_NODES}{minor}" for minor in minors if minor is not None}
        for pid in sorted({os.getpid(), *children(os.getpid())} - listed):
            opened = {path for path in open_files(pid) if path.startswith(DEVICE_NODES)}
            held = ", ".join(sorted(opened if NODE in scopes else opened & nodes))
            if held:
                holders.append(DeviceHolder(pid=pid, description=f"process {pid} of the agent, which has {held} open"))
        return tuple(holders)


# The marker file


class MarkerError(ValueError):
    """Raised if the content of a marker file is invalid. The message states the problem and the syntax."""


@dataclass(frozen=True, slots=True)
class MarkerRequest:
    """The content of a valid marker file: which GPU to release, and for how long."""

    gpu: str | None = None
    """GPU to release, by uuid, index or PCI address; None for the whole node."""
    seconds: float | None = None
    """Requested length of the release in seconds, which the configuration may limit; None for the maximum."""


def parse(text: str) -> MarkerRequest:
    """Parse the content of a marker file, such as `for=5m gpu=3`. Raise MarkerError if it is invalid.

    An empty file requests the release of the whole node.
    """
    if len(text.encode()) > MAX_BYTES:
        raise MarkerError(f"has more than {MAX_BYTES} bytes: {SYNTAX}")
    values: dict[str, str] = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        if name not in {"for", "gpu"} or not equals or not value or name in values:
            raise MarkerError(f"{word[:40]!r} is not understood: {SYNTAX}")
        values[name] = value
    duration = values.get("for")
    seconds = None if duration is None else durations.seconds(duration)
    if duration is not None and not seconds:
        raise MarkerError(f"for={duration[:40]!r} is not a duration: write it as 90s, 5m or 1h")
    return MarkerRequest(gpu=values.get("gpu"), seconds=seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerFile:
    """Result of reading the marker file once. A different `identity` shows that the file was written or touched."""

    identity: tuple[int, ...]
    modified: float = 0.0
    uid: int | None = None
    """User id of the owner of the file; None if the file is invalid or cannot be read."""
    request: MarkerRequest | None = None
    problem: str = ""
    """Why the file is invalid or cannot be read; empty if it is valid."""


def read_marker(path: Path) -> MarkerFile | None:
    """Return the result of reading the marker file; None if there is no file."""
    try:
        # A FIFO must not block the daemon, and a symbolic link must not make it read another file.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in ABSENT:
            return None
        return MarkerFile(identity=(error.errno or 0,), problem=f"cannot be read: {error.strerror}")
    try:
        return _read(descriptor)
    finally:
        os.close(descriptor)


def _read(descriptor: int) -> MarkerFile:
    status = os.fstat(descriptor)
    identity = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
    if not stat.S_ISREG(status.st_mode):
        return MarkerFile(identity=identity, problem="is not a regular file")
    try:
        request = parse(os.read(descriptor, MAX_BYTES + 1).decode(errors="replace"))
    except (MarkerError, OSError) as error:
        return MarkerFile(identity=identity, modified=status.st_mtime, problem=str(error))
    return MarkerFile(identity=identity, modified=status.st_mtime, uid=status.st_uid, request=request)


class MarkerWatch:
    """Reads the marker file and returns the release that it requests. A changed file is a new request.

    A script that writes the marker file waits until the file `<marker>.done` exists: while the marker file releases
    GPUs and no process of the agent has a released GPU open.
    """

    def __init__(self, path: Path, max_seconds: float, record: Callable[[AuditEntry], None] = lambda _: None) -> None:
        """Create the watch. `record` gets an audit entry when a file releases GPUs, and when that file is deleted."""
        self._record = record
        self.path = path
        self.max_seconds = max_seconds
        """Maximum length of a release in seconds, counted from the modification time of the file."""
        self._read: MarkerFile | None = None
        self._window: TimeWindow | None = None
        self.problem = ""
        """Path of the file and why it cannot be used; empty if it is valid, too old or absent."""
        self._done_failed = False

    def read(self, boot_id: str, bus_id: Callable[[str], str | None]) -> TimeWindow | None:
        """Read the file and return the release that it requests. The release's deadline may have passed.

        Return None if there is no file, if it cannot be used (see `problem`), or if it was too old when it was first
        read. `bus_id` returns the bus id of the GPU with a given uuid, index or PCI address; None if there is none.
        """
        marker = read_marker(self.path)
        if marker is None:
            if self._window is not None:
                self._record(AuditEntry(wall=time.time(), request=f"{self.path} deleted", client=MARKER))
            self._read, self._window, self.problem = None, None, ""
        # An unchanged file too: the GPU that it names may be listed only after the driver has been read.
        elif self._read is None or marker.identity != self._read.identity or (self.problem and marker.request):
            problem, scope, request = marker.problem, NODE, marker.request
            if request is not None and request.gpu is not None:
                scope = bus_id(request.gpu) or NODE
                problem = "" if scope else f"names GPU {request.gpu[:40]!r}, which this node does not have"
            problem = f"{self.path} {problem}" if problem else ""
            if problem and problem != self.problem:
                log.error("the marker file is invalid and releases nothing", extra={"problem": problem})
            self._read, self.problem = marker, problem
            self._window = None
            if request is not None and not problem:
                self._window = self._new_window(marker, request, scope, boot_id)
        return self._window

    def _new_window(self, marker: MarkerFile, request: MarkerRequest, scope: str, boot_id: str) -> TimeWindow | None:
        length = min(self.max_seconds, request.seconds or self.max_seconds)
        wall = time.time()
        # If the clock was set back, the age is negative, which must not prolong the window.
        left = length - max(0.0, wall - marker.modified)
        if left <= 0:
            log.info("the marker file is too old and releases nothing: delete it", extra={"path": str(self.path)})
            return None
        self._record(
            AuditEntry(wall=wall, request=f"{self.path} {request.gpu or ''}".strip(), client=MARKER, uid=marker.uid)
        )
        wanted = WindowRequest(kind=WindowKind.RELEASE, seconds=left, by=MARKER, bus_id=scope)
        return new_window(wanted, Instant(boot_id, boot_clock(), wall))

    def report_done(self, *, done: bool) -> None:
        """Create `<marker>.done` if it does not exist and `done` is True; else delete it. Log a failure."""
        path = self.path.with_name(f"{self.path.name}.done")
        try:
            if not done:
                path.unlink(missing_ok=True)
            elif not path.exists():
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644))
            self._done_failed = False
        except OSError as error:
            if not self._done_failed and (done or error.errno not in ABSENT):
                details = {"path": str(path), "error": error.strerror, "hint": "make its folder writable for gpumon"}
                log.warning("cannot report by file that the release is complete", extra=details)
            self._done_failed = True
