"""Turn records of the kernel log into error observations.

Errors that were logged before the agent's first start on this host are marked as historical.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gpumon.clock import boot_clock
from gpumon.collectors.kernel_log.lines import FirmwareErrors, Line, parse
from gpumon.model.error_event import KMSG, MAX_TEXTS, OVERRUN, ErrorObservation, LogPosition, common

log = logging.getLogger("gpumon.collectors.kernel_log")

MAX_HELD = 20_000
"""Max number of errors that KernelLogWatch holds until its `resume` is called with the stored log position."""


class KernelLogWatch:
    """Reads the errors in the kernel log, in the loop's thread.

    Lost (overwritten) records are an error of kind OVERRUN. Nothing is read before `resume` or `begin` is called.
    `path`: log to read; None for none. `now` and `wall` return the boot clock and the wall clock.
    """

    def __init__(
        self,
        path: Path | None,
        boot_id: str,
        *,
        now: Callable[[], float] = boot_clock,
        wall: Callable[[], float] | None = None,
    ) -> None:
        self.log = KernelLog(path)
        self._boot_id = boot_id
        self._now = now
        self._wall = wall or time.time
        self._clock = KernelClock(now)
        self._firmware = FirmwareErrors()
        self._held: list[tuple[Record, Line]] = []
        self._begun = False
        self._resumed = False
        self._history = False
        """True while the records being read were logged before the agent was started for the first time on this host.
        """
        self._returned_overruns = 0
        self._was_up: bool | None = None

    @property
    def position(self) -> LogPosition | None:
        """Return the log position from which the next agent continues; None before `resume` and the first read."""
        if not self._resumed or not (self.log.caught_up or self.log.last is not None):
            return None
        return LogPosition(self._boot_id, -1 if self.log.last is None else self.log.last)

    def resume(self, stored: LogPosition | None) -> tuple[ErrorObservation, ...]:
        """Continue after the stored position, and return the held errors after it. After a reboot all records are new.

        If `stored` is None, the agent runs for the first time on this host, and errors that are already in the log are
        marked as historical. Calls after the first have no effect.
        """
        if self._resumed:
            return ()
        self._resumed = True
        here = stored.sequence if stored is not None and stored.boot_id == self._boot_id else None
        if not self._begun:
            self.log.last = here
        self._begun = True
        self._history = stored is None and not self.log.caught_up
        held = [(record, line) for record, line in self._held if here is None or record.sequence > here]
        self._held = []
        return self._observations(held, historical=stored is None)

    def begin(self) -> None:
        """Let `read` begin before the stored position is known. Errors in the log are then held until `resume`."""
        self._begun = True

    def read(self) -> tuple[ErrorObservation, ...]:
        """Return the errors in new records, or hold them (see `begin`). Do nothing before `resume` or `begin`."""
        if not self._begun:
            return ()
        was_caught_up = self.log.caught_up
        records = self.log.read()
        self._note_state()
        if records and was_caught_up and not self.log.more:
            self._clock.measure(records[-1].seconds)
        lines = ((record, parse(record.text) or self._firmware.read(record.text)) for record in records)
        errors = [(record, line) for record, line in lines if line is not None]
        if not self._resumed and not was_caught_up:
            self._held += errors[: MAX_HELD - len(self._held)]
            errors = []
        observations = self._observations(errors, historical=self._history)
        self._history &= not self.log.caught_up
        return (*observations, *self._overruns())

    def close(self) -> None:
        self.log.close()

    def _observations(self, errors: Iterable[tuple[Record, Line]], *, historical: bool) -> tuple[ErrorObservation, ...]:
        """Return one observation, with a count, for each device, error and process: a storm costs little."""
        alike: dict[tuple[object, ...], list[tuple[Record, Line]]] = {}
        for record, line in errors:
            alike.setdefault((line.kind, line.bus_id, line.code, line.numbered, line.pid), []).append((record, line))
        return tuple(self._observation(each, historical=historical) for each in alike.values())

    def _observation(self, errors: list[tuple[Record, Line]], *, historical: bool) -> ErrorObservation:
        (first, _), (last, line) = errors[0], errors[-1]
        at = self._clock.to_boot_clock(last.seconds)
        stated = {line.fatal for _, line in errors} - {None}
        return ErrorObservation(
            kind=line.kind,
            code=line.code,
            bus_id=line.bus_id,
            at=at,
            since=min(at, self._clock.to_boot_clock(first.seconds)),
            wall=self._wall() - (self._now() - at),
            source=KMSG,
            times=len(errors),
            text=line.text,
            texts=tuple(dict.fromkeys(each.text for _, each in errors))[:MAX_TEXTS],
            numbered=line.numbered,
            gpu_instance_id=common(each.gpu_instance_id for _, each in errors),
            compute_instance_id=common(each.compute_instance_id for _, each in errors),
            fatal=any(stated) if stated else None,
            historical=historical,
            pid=line.pid,
        )

    def _overruns(self) -> Iterator[ErrorObservation]:
        times = self.log.overruns - self._returned_overruns
        if not times or not self._resumed:
            return
        self._returned_overruns = self.log.overruns
        lost, self.log.lost = self.log.lost, 0
        at = self._now()
        text = f"{lost} records of the kernel log were overwritten before they were read"
        yield ErrorObservation(
            kind=OVERRUN, code=0, bus_id="", at=at, since=at, wall=self._wall(), source=KMSG, times=times, text=text
        )

    def _note_state(self) -> None:
        up = self.log.up
        if up is False and self._was_up is not False:
            reason = "CAP_SYSLOG is missing" if self.log.denied else "it cannot be read"
            log.warning(
                "the kernel log cannot be read: Xids come from NVML alone",
                extra={"path": str(self.log.path), "error": reason},
            )
        elif up and self._was_up is False:
            log.info("the kernel log can be read", extra={"path": str(self.log.path)})
        self._was_up = up


MAX_LINES = 2000
"""Max number of lines in one read, so that neither a storm of errors nor a wrong path blocks the loop."""

_RECORD_LIMIT = 8192
"""Size of the read buffer in bytes. The kernel refuses a read into a buffer smaller than the record."""
_USER_SPACE = 8
"""A record with at least this priority value was written by a process. The facility in it is not the kernel's."""
_HEADER = re.compile(rb"(\d+),(\d+),(\d+),[^;]*;(.*)")
_ESCAPED = re.compile(rb"\\x([0-9a-f]{2})")


@dataclass(frozen=True, slots=True)
class Record:
    """One record of the kernel log."""

    sequence: int
    """Sequence number since the boot."""
    seconds: float
    """Time stamp of the record in seconds since boot, by the clock of the kernel log."""
    text: str
    """Text of the record; empty if a process has written it to /dev/kmsg."""


class KernelLog:
    """Reads /dev/kmsg or a file like it, and opens it again after an error. Without a path there are no records."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.up: bool | None = None
        """Whether the log can be read; None if the path is None or does not exist."""
        self.denied = False
        """Whether permission to open the log is denied: CAP_SYSLOG is missing, or the file mode forbids it."""
        self.caught_up = False
        """True once `read` has reached the end of the log."""
        self.more = False
        """True if the last `read` stopped at MAX_LINES, so that more records may be waiting."""
        self.overruns = 0
        """Number of times that the kernel has overwritten records before they were read."""
        self.lost = 0
        """Number of records that were overwritten before they were read. KernelLogWatch resets it when it reports them.
        """
        self.last: int | None = None
        """Sequence number of the newest record that was read."""
        self._descriptor: int | None = None
        self._rest = b""
        self._open()

    def fileno(self) -> int | None:
        """Return the descriptor for a selector; None if the log is closed or a plain file, which is always ready."""
        if self._descriptor is None or stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            return None
        return self._descriptor

    def read(self) -> tuple[Record, ...]:
        """Return the records since the last call, up to about MAX_LINES lines; () if the log cannot be read."""
        if self._descriptor is None:
            self._open()
        records: list[Record] = []
        lines_read = 0
        self.more = True
        while lines_read < MAX_LINES:
            chunk = self._chunk()
            if not chunk:
                self.more = False
                self.caught_up |= self._descriptor is not None
                break
            *lines, rest = (self._rest + chunk).split(b"\n")
            self._rest = rest[-_RECORD_LIMIT:]
            records += [record for line in lines if (record := _parse(line)) is not None]
            lines_read += max(1, len(lines))
        return tuple(record for record in records if self._is_new(record))

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _is_new(self, record: Record) -> bool:
        """Return True if the record was not returned before. Count records that are missing before it."""
        gap = 0 if self.last is None else record.sequence - self.last - 1
        if gap < 0:
            return False
        self.overruns += gap > 0
        self.lost += gap
        self.last = record.sequence
        return True

    def _open(self) -> None:
        self.up, self.denied, self._rest = None, False, b""
        if self.path is None:
            return
        try:
            # A FIFO that is also opened for writing has no end of file, which a selector would report continuously.
            access = os.O_RDWR if self.path.is_fifo() else os.O_RDONLY
            self._descriptor = os.open(self.path, access | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        except PermissionError:
            self.denied = True
        except OSError:
            pass
        if self._descriptor is not None and stat.S_ISDIR(os.fstat(self._descriptor).st_mode):
            self.close()  # a folder can be opened like a file, but a selector cannot watch it
        self.up = self._descriptor is not None

    def _chunk(self) -> bytes:
        """Return one record of /dev/kmsg, or a part of a file; b"" at the end of the log or if it cannot be read."""
        while self._descriptor is not None:
            try:
                return os.read(self._descriptor, _RECORD_LIMIT)
            except BlockingIOError:
                break
            except BrokenPipeError:  # overwritten: the next read continues with the oldest record that is left
                continue
            except OSError:
                self.up = False
                self.close()
        return b""


def _parse(line: bytes) -> Record | None:
    """Return the record in a line; None for a line without one, such as a line with the previous record's device."""
    match = _HEADER.fullmatch(line)
    if match is None:
        return None
    priority, sequence, microseconds, text = match.groups()
    if int(priority) >= _USER_SPACE:
        text = b""
    if b"\\x" in text:  # the kernel's escape for a newline and for bytes that are not printable
        text = _ESCAPED.sub(lambda escaped: bytes((int(escaped[1], 16),)), text)
    return Record(int(sequence), int(microseconds) / 1e6, text.decode(errors="replace"))


DRIFT = 1e-4
"""Maximum drift that is assumed between CLOCK_BOOTTIME and the clock of the kernel log, in seconds per second."""


class KernelClock:
    """Converts time stamps of the kernel log to CLOCK_BOOTTIME by adding an offset, which `measure` updates."""

    def __init__(self, now: Callable[[], float] = boot_clock) -> None:
        self._now = now
        self._ahead = now() - time.monotonic()
        """Seconds by which CLOCK_BOOTTIME is ahead of the time stamps."""
        self._measured_at: float | None = None

    def measure(self, seconds: float) -> None:
        """Update the offset. `seconds`: time stamp of a record that was just logged.

        After the first call the offset grows by at most DRIFT per second, because the record may have waited before it
        was read.
        """
        now = self._now()
        ahead = now - seconds
        if self._measured_at is not None:
            ahead = min(ahead, self._ahead + (now - self._measured_at) * DRIFT)
        self._ahead, self._measured_at = ahead, now

    def to_boot_clock(self, seconds: float) -> float:
        """Return CLOCK_BOOTTIME for a time stamp of the kernel log, both in seconds; it is never in the future."""
        return min(self._now(), seconds + self._ahead)
