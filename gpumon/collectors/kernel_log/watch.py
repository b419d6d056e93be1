"""Turn records of the kernel log into error observations.

Errors that were logged before the agent's first start on this host are marked as historical.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from gpumon.clock import boot_clock
from gpumon.collectors.kernel_log.lines import FirmwareErrors, Line, parse
from gpumon.collectors.kernel_log.reader import KernelClock, KernelLog, Record
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
        """Return the log position from which the next agent continues.

        Return None before `resume`. If `resume` got no position of this boot, also return None until a read has
        returned a record or reached the end of the log.
        """
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
        """Let `read` begin before the stored position is known.

        Errors that are already in the log are then held until `resume`. Later errors are returned at once.
        """
        self._begun = True

    def read(self) -> tuple[ErrorObservation, ...]:
        """Read the new records, and return the errors in them or hold them (see `begin`).

        Do nothing before `resume` or `begin` is called.
        """
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
        """Return one observation, with a count, for each combination of device, error (kind and code) and process.

        A storm of equal errors therefore costs little.
        """
        alike: dict[tuple[object, ...], list[tuple[Record, Line]]] = {}
        for record, line in errors:
            alike.setdefault((line.kind, line.bus_id, line.code, line.numbered, line.pid), []).append((record, line))
        return tuple(self._observation(each, historical=historical) for each in alike.values())

    def _observation(self, errors: list[tuple[Record, Line]], *, historical: bool) -> ErrorObservation:
        (first, _), (last, line) = errors[0], errors[-1]
        at = self._clock.to_boot_clock(last.seconds)
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
            fatal=_fatal(errors),
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


def _fatal(errors: list[tuple[Record, Line]]) -> bool | None:
    """Return whether any of these errors is fatal; None if no line states whether its error is fatal."""
    stated = {line.fatal for _, line in errors} - {None}
    return any(stated) if stated else None
