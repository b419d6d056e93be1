"""Reads the kernel log from the main loop, and tells which of its errors are news and which are history."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from gpumon.clock import boot_clock
from gpumon.collectors.kernel_log.lines import Line, parse
from gpumon.collectors.kernel_log.log_time import KernelClock
from gpumon.collectors.kernel_log.reader import KernelLog, Record
from gpumon.model.error_event import KMSG, MOST_TEXTS, OVERRUN, ErrorObservation, LogPosition, common

log = logging.getLogger("gpumon.collectors.kernel_log")

MOST_HELD = 20_000
"""Errors that wait until it is known which of them were told in an earlier life."""


class KernelLogWatch:
    """Use from the loop's thread. Nothing is read before `resume` or `begin`: the kernel keeps it for us."""

    def __init__(
        self,
        path: Path | None,
        boot_id: str,
        tell: Callable[[tuple[ErrorObservation, ...]], None],
        *,
        now: Callable[[], float] = boot_clock,
        wall: Callable[[], float] | None = None,
    ) -> None:
        self.log = KernelLog(path)
        self._boot_id = boot_id
        self._tell = tell
        self._now = now
        self._wall = wall or time.time
        self._clock = KernelClock(now)
        self._held: list[tuple[Record, Line]] = []
        self._begun = False
        self._resumed = False
        self._history = False
        """What is read now stood there before the agent was ever installed."""
        self._overruns = 0
        self._was_up: bool | None = None

    @property
    def position(self) -> LogPosition | None:
        """Where an agent after this one is to go on; None while that is not known."""
        if not self._resumed or not (self.log.caught_up or self.log.last is not None):
            return None
        return LogPosition(self._boot_id, -1 if self.log.last is None else self.log.last)

    def resume(self, told: LogPosition | None) -> None:
        """Go on from there: what this boot has said since is news. None: nothing was ever told, what stands is history.

        In a boot that is not the one of `told`, all is news.
        """
        if self._resumed:
            return
        self._resumed = True
        here = told.sequence if told is not None and told.boot_id == self._boot_id else None
        if not self._begun:
            self.log.last = here
        self._begun = True
        self._history = told is None and not self.log.caught_up
        held = [(record, line) for record, line in self._held if here is None or record.sequence > here]
        self._held = []
        if held:
            self._tell(self._observations(held, historical=told is None))

    def begin(self) -> None:
        """It is not known where to go on, and no longer waited for. What stands in the log is held until it is."""
        self._begun = True

    def read(self) -> None:
        """Take what there is, in one bounded go."""
        if not self._begun:
            return
        was_caught_up = self.log.caught_up
        records = self.log.read()
        self._note_state()
        if records and was_caught_up and not self.log.more:
            self._clock.fresh(records[-1].seconds)
        errors = [(record, line) for record in records if (line := parse(record.text)) is not None]
        if not self._resumed and not was_caught_up:
            self._held += errors[: MOST_HELD - len(self._held)]
        elif errors:
            self._tell(self._observations(errors, historical=self._history))
        self._history &= not self.log.caught_up
        self._tell_overruns()

    def close(self) -> None:
        self.log.close()

    def _observations(self, errors: Iterable[tuple[Record, Line]], *, historical: bool) -> tuple[ErrorObservation, ...]:
        """Of one device and code there is one, so that a storm costs little more than its reading."""
        alike: dict[tuple[object, ...], list[tuple[Record, Line]]] = {}
        for record, line in errors:
            alike.setdefault((line.kind, line.bus_id, line.code, line.numbered), []).append((record, line))
        return tuple(self._observation(each, historical=historical) for each in alike.values())

    def _observation(self, errors: list[tuple[Record, Line]], *, historical: bool) -> ErrorObservation:
        (first, _), (last, line) = errors[0], errors[-1]
        at = self._clock.at(last.seconds)
        return ErrorObservation(
            kind=line.kind,
            code=line.code,
            bus_id=line.bus_id,
            at=at,
            since=min(at, self._clock.at(first.seconds)),
            wall=self._wall() - (self._now() - at),
            source=KMSG,
            times=len(errors),
            text=line.text,
            texts=tuple(dict.fromkeys(each.text for _, each in errors))[:MOST_TEXTS],
            numbered=line.numbered,
            gpu_instance_id=common(each.gpu_instance_id for _, each in errors),
            compute_instance_id=common(each.compute_instance_id for _, each in errors),
            fatal=_fatal(errors),
            historical=historical,
        )

    def _tell_overruns(self) -> None:
        times = self.log.overruns - self._overruns
        if not times or not self._resumed:
            return
        self._overruns = self.log.overruns
        lost, self.log.lost = self.log.lost, 0
        at = self._now()
        words = f"{lost} records of the kernel log were overwritten before they were read"
        overrun = ErrorObservation(
            kind=OVERRUN, code=0, bus_id="", at=at, since=at, wall=self._wall(), source=KMSG, times=times, text=words
        )
        self._tell((overrun,))

    def _note_state(self) -> None:
        up = self.log.up
        if up is False and self._was_up is not False:
            reason = "CAP_SYSLOG is missing" if self.log.denied else "it cannot be read"
            log.warning("no kernel log: Xids come from NVML alone", extra={"path": str(self.log.path), "error": reason})
        elif up and self._was_up is False:
            log.info("the kernel log can be read", extra={"path": str(self.log.path)})
        self._was_up = up


def _fatal(errors: list[tuple[Record, Line]]) -> bool | None:
    """Of several, whether one is; None where none says so."""
    said = {line.fatal for _, line in errors} - {None}
    return any(said) if said else None
