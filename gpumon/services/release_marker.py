"""Reads the marker file. While it exists and is not too old, the GPU that it names, or the whole node, is released."""

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
from gpumon.model.instant import Instant
from gpumon.model.request import AuditEntry
from gpumon.model.time_window import MARKER, NODE, TimeWindow, WindowKind, WindowRequest, new_window

log = logging.getLogger("gpumon.release")

MAX_BYTES = 4096
ABSENT = (errno.ENOENT, errno.ENOTDIR)
SYNTAX = "write nothing, or for=DURATION, gpu=GPU, or both"


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
                named = bus_id(request.gpu)
                scope = NODE if named is None else named
                problem = f"names GPU {request.gpu[:40]!r}, which this node does not have" if named is None else ""
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
