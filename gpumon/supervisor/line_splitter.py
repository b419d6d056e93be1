"""Splits the output of a child into lines of limited length, so that a faulty child cannot fill the daemon's memory."""

from __future__ import annotations

from collections.abc import Callable


class LineSplitter:
    """Calls `on_line` with each line, without its newline. Drops a line over `limit` bytes and calls `on_too_long`."""

    def __init__(self, limit: int, on_line: Callable[[bytes], None], on_too_long: Callable[[], None]) -> None:
        self._limit = limit
        self._on_line = on_line
        self._on_too_long = on_too_long
        self._rest = b""
        self._dropping = False
        """True while the rest of a line that is too long is dropped."""

    def feed(self, received: bytes) -> None:
        """Split the bytes that were read from the child's pipe. An incomplete last line is kept for the next call."""
        *lines, self._rest = (self._rest + received).split(b"\n")
        for line in lines:
            self._take(line)
            self._dropping = False
        if len(self._rest) > self._limit and not self._dropping:
            self._dropping = True
            self._on_too_long()
        if self._dropping:
            self._rest = b""

    def _take(self, line: bytes) -> None:
        if self._dropping:
            return
        if len(line) > self._limit:
            self._on_too_long()
        else:
            self._on_line(line)
