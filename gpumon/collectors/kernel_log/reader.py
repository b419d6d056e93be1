"""The kernel's messages as they come: /dev/kmsg, or a file or FIFO of the same form. Never blocks."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_EVENTS = 2000
"""Records, or lines of what is no kernel log, of one read: neither a storm nor a wrong path must hold up the loop."""

_RECORD_LIMIT = 8192
"""Bytes; the kernel refuses to write a record into less than it needs."""
_HEADER = re.compile(rb"(\d+),(\d+),(\d+),[^;]*;(.*)")
_ESCAPED = re.compile(rb"\\x([0-9a-f]{2})")


@dataclass(frozen=True, slots=True)
class Record:
    """One message of the kernel."""

    sequence: int
    """Counts up from boot on."""
    seconds: float
    """Since boot, by the kernel's own clock."""
    text: str


class KernelLog:
    """Tells each record once, beginning with the oldest that is there. Where it cannot be opened, `read` tries again.

    Without a path there is no log.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.up: bool | None = None
        """Whether it can be read; None where there is none."""
        self.denied = False
        """Whether the permission is missing: CAP_SYSLOG, or the file's own mode."""
        self.caught_up = False
        """Whether what stood there at first has been read to its end."""
        self.more = False
        """Whether the last read ended before the log did."""
        self.overruns = 0
        """How often the kernel had overwritten records before they were read."""
        self.lost = 0
        """How many those were."""
        self.last: int | None = None
        """Sequence of the newest record read."""
        self._descriptor: int | None = None
        self._rest = b""
        self._open()

    def fileno(self) -> int | None:
        """For a selector; None for a closed log and for plain files, which are always ready."""
        if self._descriptor is None or stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            return None
        return self._descriptor

    def read(self) -> tuple[Record, ...]:
        """All records since the last call, as far as they fit in one go."""
        if self._descriptor is None:
            self._open()
        records: list[Record] = []
        looked_at = 0
        self.more = True
        while looked_at < MAX_EVENTS:
            chunk = self._chunk()
            if not chunk:
                self.more = False
                self.caught_up |= self._descriptor is not None
                break
            *lines, rest = (self._rest + chunk).split(b"\n")
            self._rest = rest[-_RECORD_LIMIT:]
            records += [record for line in lines if (record := _parse(line)) is not None]
            looked_at += max(1, len(lines))
        return tuple(self._new(records))

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _new(self, records: Iterable[Record]) -> Iterator[Record]:
        """Those not told yet: a log that was opened again begins with its oldest."""
        for record in records:
            last = record.sequence - 1 if self.last is None else self.last
            if record.sequence <= last:
                continue
            gap = record.sequence - last - 1
            self.overruns += gap > 0
            self.lost += gap
            self.last = record.sequence
            yield record

    def _open(self) -> None:
        self.up, self.denied, self._rest = None, False, b""
        if self.path is None:
            return
        try:
            # A FIFO opened for writing too never comes to its end, which a selector would report without pause.
            access = os.O_RDWR if self.path.is_fifo() else os.O_RDONLY
            self._descriptor = os.open(self.path, access | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        except PermissionError:
            self.denied = True
        except OSError:
            pass
        if self._descriptor is not None and stat.S_ISDIR(os.fstat(self._descriptor).st_mode):
            self.close()  # opens like a file, and no selector takes it
        self.up = self._descriptor is not None

    def _chunk(self) -> bytes:
        """One record of /dev/kmsg, or some bytes of a file; empty when there is no more, or none can be read."""
        while self._descriptor is not None:
            try:
                return os.read(self._descriptor, _RECORD_LIMIT)
            except BlockingIOError:
                break
            except BrokenPipeError:  # overwritten meanwhile: the next read goes on with the oldest that is left
                continue
            except OSError:
                self.up = False
                self.close()
        return b""


def _parse(line: bytes) -> Record | None:
    """None for the lines below a record, which name its device, and for what is no record."""
    match = _HEADER.fullmatch(line)
    if match is None:
        return None
    _, sequence, microseconds, text = match.groups()
    if b"\\x" in text:  # how the kernel writes a newline, and any byte that is not printable
        text = _ESCAPED.sub(lambda escaped: bytes((int(escaped[1], 16),)), text)
    return Record(int(sequence), int(microseconds) / 1e6, text.decode(errors="replace"))
