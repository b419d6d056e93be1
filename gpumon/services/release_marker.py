"""The marker file: while it exists and is young enough, the agent keeps off what it names. Read without blocking."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpumon.clock import boot_clock
from gpumon.model.release import NODE, Asked, MarkerError, Window, parse

log = logging.getLogger("gpumon.model.release")

LONGEST = 4096
"""Bytes; what a marker has to say takes a few words."""
NONE = (errno.ENOENT, errno.ENOTDIR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """One state of the file; written or touched again, it is another one."""

    identity: tuple[int, ...]
    modified: float = 0.0
    """Seconds since the epoch."""
    asked: Asked | None = None
    problem: str = ""
    """Why it asks for nothing."""


def look(path: Path) -> Marker | None:
    """The file as it is now; None without one."""
    try:
        # Neither a FIFO nor a link may hold up or lead astray a daemon that anybody can be made to look at.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in NONE:
            return None
        return Marker(identity=(error.errno or 0,), problem=f"cannot be read: {error.strerror}")
    try:
        return _read(descriptor)
    finally:
        os.close(descriptor)


def _read(descriptor: int) -> Marker:
    about = os.fstat(descriptor)
    identity = (about.st_dev, about.st_ino, about.st_mtime_ns, about.st_size)
    if not stat.S_ISREG(about.st_mode):
        return Marker(identity=identity, problem="is no regular file")
    try:
        asked = _asked(os.read(descriptor, LONGEST + 1))
    except (MarkerError, OSError) as error:
        return Marker(identity=identity, modified=about.st_mtime, problem=str(error))
    return Marker(identity=identity, modified=about.st_mtime, asked=asked)


def _asked(content: bytes) -> Asked:
    if len(content) > LONGEST:
        raise MarkerError(f"holds more than {LONGEST} bytes: write nothing, or for=DURATION, gpu=GPU, or both")
    return parse(content.decode(errors="replace"))


class MarkerWatch:
    """Makes a window of each state of the file, once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: Marker | None = None
        self.window: Window | None = None
        """What it asks for. May have ended."""
        self.problem = ""
        """Why it asks for nothing though it is there, with its path."""

    def look(self, most: float, find: Callable[[str], str | None]) -> None:
        """Look again. `most`: seconds that a marker counts at most; `find`: the bus id of a GPU by any of its names."""
        marker = look(self._path)
        if marker is None:
            self._seen, self.window, self.problem = None, None, ""
        elif self._seen is None or marker.identity != self._seen.identity or (self.problem and marker.asked):
            self._take(marker, most, find)  # a GPU that is not known may be, once the driver has been read

    def _take(self, marker: Marker, most: float, find: Callable[[str], str | None]) -> None:
        wrong, bus_id = marker.problem, NODE
        if marker.asked is not None and marker.asked.gpu is not None:
            bus_id = find(marker.asked.gpu) or NODE
            wrong = wrong or ("" if bus_id else f"names GPU {marker.asked.gpu[:40]!r}, which this node does not have")
        problem = f"{self._path} {wrong}" if wrong else ""
        if problem and problem != self.problem:
            log.error("the marker file releases nothing", extra={"problem": problem})
        self._seen, self.problem = marker, problem
        self.window = self._window(marker, marker.asked, bus_id, most) if marker.asked and not problem else None

    def _window(self, marker: Marker, asked: Asked, bus_id: str, most: float) -> Window | None:
        lasting = min(most, asked.seconds or most)
        left = lasting - max(0.0, time.time() - marker.modified)  # a clock that went back makes it young, not eternal
        if left <= 0:
            log.info("the marker file is too old to count: delete it", extra={"path": str(self._path)})
            return None
        now = time.time()
        return Window(bus_id=bus_id, by="marker", since=now, until=now + left, deadline=boot_clock() + left)


class Done:
    """The file beside the marker that says that nothing is held any more: who has no HTTP client waits for it."""

    def __init__(self, marker: Path) -> None:
        self.path = marker.with_name(f"{marker.name}.done")
        self._said: bool | None = None
        self._made = False

    def say(self, *, done: bool) -> None:
        """Make the file, or take it away."""
        if done == self._said and not self._is_gone():
            return
        self._said, self._made = done, False
        try:
            self._make() if done else self.path.unlink(missing_ok=True)
        except OSError as error:
            if done or error.errno not in NONE:
                words = {"path": str(self.path), "error": error.strerror, "hint": "make its folder writable for gpumon"}
                log.warning("who waits for this file waits in vain", extra=words)

    def _is_gone(self) -> bool:
        """A script deleted it, to wait for it afresh. What could not be made was told, and is not tried again."""
        return self._made and not self.path.exists()

    def _make(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
        os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644))
        self._made = True
