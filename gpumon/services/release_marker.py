"""The marker file: while it exists and is not too old, the node or the GPU that it names is released."""

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
from gpumon.model.audit_entry import AuditEntry
from gpumon.model.time_window import MARKER, NODE, TimeWindow, WindowKind, WindowRequest, new_window

log = logging.getLogger("gpumon.release")

MAX_BYTES = 4096
ABSENT = (errno.ENOENT, errno.ENOTDIR)
SYNTAX = "write nothing, or for=DURATION, gpu=GPU, or both"


class MarkerError(ValueError):
    """A marker file is invalid. The message names the problem and the syntax."""


@dataclass(frozen=True, slots=True)
class MarkerRequest:
    """The content of a marker file."""

    gpu: str | None = None
    """uuid, index or PCI address. None: the whole node."""
    seconds: float | None = None
    """None: the maximum."""


def parse(text: str) -> MarkerRequest:
    """Parse words such as `for=5m gpu=3`. An empty file names the whole node. Raises MarkerError."""
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
    """The marker file at one time. Its identity changes when it is written or touched."""

    identity: tuple[int, ...]
    modified: float = 0.0
    """Seconds since the epoch."""
    uid: int | None = None
    """Owner of the file."""
    request: MarkerRequest | None = None
    problem: str = ""
    """Why the file releases nothing."""


def read_marker(path: Path) -> MarkerFile | None:
    """Return the file as it is now, or None if there is none."""
    try:
        # A FIFO must not block the daemon, and a link must not lead it to another file.
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
        request = _request(os.read(descriptor, MAX_BYTES + 1))
    except (MarkerError, OSError) as error:
        return MarkerFile(identity=identity, modified=status.st_mtime, problem=str(error))
    return MarkerFile(identity=identity, modified=status.st_mtime, uid=status.st_uid, request=request)


def _request(content: bytes) -> MarkerRequest:
    if len(content) > MAX_BYTES:
        raise MarkerError(f"has more than {MAX_BYTES} bytes: {SYNTAX}")
    return parse(content.decode(errors="replace"))


class MarkerWatch:
    """Derives a release from the marker file: a new one whenever the file changes."""

    def __init__(self, path: Path, max_seconds: float, record: Callable[[AuditEntry], None] = lambda _: None) -> None:
        """`record` is called with the audit entry of each file that requests a release."""
        self._record = record
        self.path = path
        self.max_seconds = max_seconds
        """Maximum age of the file."""
        self._read: MarkerFile | None = None
        self._window: TimeWindow | None = None
        self.problem = ""
        """Why the file releases nothing, with its path."""

    def read(self, boot_id: str, bus_id: Callable[[str], str | None]) -> TimeWindow | None:
        """Read the file, and return its window, which may have ended. `bus_id` finds a GPU by any of its names."""
        marker = read_marker(self.path)
        if marker is None:
            self._read, self._window, self.problem = None, None, ""
        elif self._read is None or marker.identity != self._read.identity or (self.problem and marker.request):
            self._take(marker, boot_id, bus_id)  # the GPU may exist once the driver has been read
        return self._window

    def _take(self, marker: MarkerFile, boot_id: str, bus_id: Callable[[str], str | None]) -> None:
        problem, scope = marker.problem, NODE
        if marker.request is not None and marker.request.gpu is not None:
            scope = bus_id(marker.request.gpu) or NODE
            problem = problem or (
                "" if scope else f"names GPU {marker.request.gpu[:40]!r}, which this node does not have"
            )
        problem = f"{self.path} {problem}" if problem else ""
        if problem and problem != self.problem:
            log.error("the marker file is invalid and releases nothing", extra={"problem": problem})
        self._read, self.problem = marker, problem
        self._window = (
            None if problem or marker.request is None else self._new_window(marker, marker.request, scope, boot_id)
        )

    def _new_window(self, marker: MarkerFile, request: MarkerRequest, scope: str, boot_id: str) -> TimeWindow | None:
        length = min(self.max_seconds, request.seconds or self.max_seconds)
        wall = time.time()
        left = length - max(0.0, wall - marker.modified)  # a clock that was set back must not prolong the window
        if left <= 0:
            log.info("the marker file is too old and releases nothing: delete it", extra={"path": str(self.path)})
            return None
        self._record(
            AuditEntry(wall=wall, request=f"{self.path} {request.gpu or ''}".strip(), client=MARKER, uid=marker.uid)
        )
        wanted = WindowRequest(kind=WindowKind.RELEASE, seconds=left, by=MARKER, bus_id=scope)
        return new_window(wanted, wall=wall, at=boot_clock(), boot_id=boot_id)


class DoneFile:
    """The file beside the marker that exists while no process has what the marker names open. For scripts."""

    def __init__(self, marker: Path) -> None:
        self.path = marker.with_name(f"{marker.name}.done")
        self._failed = False

    def update(self, *, done: bool) -> None:
        """Create or delete the file. A script may delete it, to wait for it again."""
        try:
            if not done:
                self.path.unlink(missing_ok=True)
            elif not self.path.exists():
                os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644))
            self._failed = False
        except OSError as error:
            if not self._failed and (done or error.errno not in ABSENT):
                details = {"path": str(self.path), "error": error.strerror}
                hint = "make its folder writable for gpumon"
                log.warning("cannot report by file that the release is complete", extra=details | {"hint": hint})
            self._failed = True
