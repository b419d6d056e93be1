"""Timetables of scheduled probe runs: an interval or crontab text, with jitter, as triggers of APScheduler."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import pairwise
from typing import Any

from gpumon.model import durations
from gpumon.probe.core.probes import NEVER

FORMS = "an interval such as 6h, crontab text such as '0 3 * * sun', or never"
MIN_INTERVAL, MAX_INTERVAL = 10, 366 * 86400
_FIELDS = ("minute", "hour", "day", "month", "day_of_week")
_FIRST = datetime(2028, 1, 1, tzinfo=timezone.utc)
"""Time from which the fire times of crontab text are compared: any, but always the same."""
_COMPARED = 14
"""Number of fire times that are compared: two weeks of weekdays, or a year of months."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timetable:
    """Times of the scheduled runs of one probe.

    `interval`: seconds between two runs, or None for `cron`: crontab text in the time zone of the host. `jitter`: max
    random delay of a run in seconds. `initial_delay`: seconds until the first run, if there is an interval.
    """

    interval: float | None = None
    cron: str = ""
    jitter: float = 0.0
    initial_delay: float = 0.0

    @property
    def max_interval(self) -> float:
        """Return the max seconds between two runs, without jitter."""
        if self.interval is not None:
            return self.interval
        return max((after - before).total_seconds() for before, after in pairwise(_fire_times(_cron(self.cron, None))))

    def trigger(self) -> Any:
        """Return the trigger of APScheduler."""
        if self.interval is None:
            return _cron(self.cron, self.jitter)
        from apscheduler.triggers.interval import IntervalTrigger  # noqa: PLC0415 - as below

        return IntervalTrigger(seconds=self.interval, jitter=self.jitter, timezone=timezone.utc)


def parse_schedule(text: str) -> Timetable:
    """Return the timetable of a text that `check_schedule` accepts, except never."""
    interval = durations.seconds(text)
    return Timetable(cron=text) if interval is None else Timetable(interval=interval)


def check_schedule(text: str) -> str:
    """Return a valid schedule, one of FORMS, unchanged. Raise ValueError for any other text."""
    seconds = durations.seconds(text)
    if text == NEVER or (seconds is not None and MIN_INTERVAL <= seconds <= MAX_INTERVAL):
        return text
    if seconds is not None:
        raise ValueError(f"must be an interval from {MIN_INTERVAL}s to 366d")
    if len(text.split()) != len(_FIELDS):
        raise ValueError(f"must be {FORMS}")
    if any(character.isdigit() for character in text.rsplit(maxsplit=1)[-1]):
        raise ValueError("must name weekdays (sun, mon-fri): programs count them differently")
    try:
        fires = len(list(_fire_times(_cron(text, None)))) == _COMPARED
    except ValueError as error:
        raise ValueError(f"must be {FORMS} ({error})") from None
    if not fires:
        raise ValueError("must be a time that recurs")
    return text


def _cron(text: str, jitter: float | None) -> Any:
    from apscheduler.triggers.cron import CronTrigger  # noqa: PLC0415 - commands that need no schedule start faster

    return CronTrigger(**dict(zip(_FIELDS, text.split(), strict=True)), jitter=jitter)


def _fire_times(trigger: Any) -> Iterator[datetime]:
    at = None
    for _ in range(_COMPARED):
        at = trigger.get_next_fire_time(at, at or _FIRST)
        if at is None:
            return
        yield at
