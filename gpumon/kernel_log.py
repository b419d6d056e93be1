"""The kernel's messages as they come: /dev/kmsg, or a file or FIFO of the same form. Never blocks."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

MOST_AT_ONCE = 2000
"""Records of one read: a storm must not hold up the loop."""

_RECORD_LIMIT = 8192
"""Bytes; the kernel refuses to write a record into less than it needs."""
_HEADER = re.compile(rb"(\d+),(\d+),(\d+),[^;]*;(.*)")


@dataclass(frozen=True, slots=True)
class Record:
    """One message of the kernel."""

    sequence: int
    """Counts up from boot on."""
    seconds: float
    """Since boot, by the kernel's own clock."""
    text: str


class KernelLog:
    """Tells what was written after it was opened. Where it cannot be opened, `read` tries again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.up: bool | None = None
        """Whether it can be read; None where there is none."""
        self.denied = False
        """Whether the permission is missing: CAP_SYSLOG, or the file's own mode."""
        self.overruns = 0.0
        """How often the kernel had overwritten records before they were read."""
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
        while len(records) < MOST_AT_ONCE and (chunk := self._chunk()):
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            records += [record for line in lines if (record := _parse(line)) is not None]
        return tuple(records)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> None:
        self.up, self.denied = False, False
        try:
            # A FIFO opened for writing too never comes to its end, which a selector would report without pause.
            access = os.O_RDWR if self.path.is_fifo() else os.O_RDONLY
            self._descriptor = os.open(self.path, access | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            self.up = None
        except PermissionError:
            self.denied = True
        except OSError:
            return
        else:
            self.up = True
            with contextlib.suppress(OSError):  # a FIFO has no end to go to
                os.lseek(self._descriptor, 0, os.SEEK_END)

    def _chunk(self) -> bytes:
        """One record of /dev/kmsg, or some bytes of a file; empty when there is no more, or none can be read."""
        while self._descriptor is not None:
            try:
                return os.read(self._descriptor, _RECORD_LIMIT)
            except BlockingIOError:
                break
            except BrokenPipeError:  # the next read goes on with the oldest that is left
                self.overruns += 1
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
    return Record(int(sequence), int(microseconds) / 1e6, text.decode(errors="replace"))
