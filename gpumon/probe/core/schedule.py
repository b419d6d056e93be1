"""Schedule of probe runs: an interval with jitter. This is the only module that uses APScheduler."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_MAX_INSTANCES, EVENT_JOB_MISSED
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.interval import IntervalTrigger

from gpumon.clock import boot_clock

log = logging.getLogger("gpumon.probe")

STEP_SECONDS = 5.0
"""Min seconds by which the wall clock must have been stepped for the next run to be moved by the same time."""

_TROUBLES = {
    EVENT_JOB_MISSED: "missed",
    EVENT_JOB_ERROR: "error",
    EVENT_JOB_MAX_INSTANCES: "overrun",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timetable:
    """Times of scheduled runs in seconds.

    `interval`: between two runs. `jitter`: max random shift of a run. `initial_delay`: from the start of the schedule
    to the first run.
    """

    interval: float
    jitter: float
    initial_delay: float


class Schedule:
    """Calls `fire` in a thread of APScheduler whenever a run is due. `fire` must return at once, as Loop.post does."""

    def __init__(self, fire: Callable[[], None], timetable: Timetable) -> None:
        self._fire = fire
        self._timetable = timetable
        self._scheduler: Any = None
        self._boot_wall_time = _boot_wall_time()

    def start(self) -> None:
        """Start or restart the scheduler. The first run is due `initial_delay` seconds later."""
        self.stop()
        timetable = self._timetable
        self._boot_wall_time = _boot_wall_time()
        self._scheduler = BackgroundScheduler(timezone=timezone.utc)
        self._scheduler.add_listener(_log_trouble, sum(_TROUBLES))
        self._scheduler.add_job(
            self._fire,
            IntervalTrigger(seconds=timetable.interval, jitter=timetable.jitter, timezone=timezone.utc),
            next_run_time=datetime.now(timezone.utc) + timedelta(seconds=timetable.initial_delay),
            coalesce=True,
            max_instances=1,
            misfire_grace_time=None,  # run late rather than never
        )
        self._scheduler.start()

    def stop(self) -> None:
        if self._scheduler is not None:
            self._scheduler.shutdown(wait=False)
            self._scheduler = None

    def apply(self, timetable: Timetable) -> None:
        """Restart the scheduler if the timetable has changed."""
        if timetable != self._timetable:
            self._timetable = timetable
            self.start()

    def follow_clock(self) -> None:
        """Move the next run by the same time as the wall clock was stepped, if that is at least STEP_SECONDS.

        APScheduler schedules by wall time.
        """
        step = _boot_wall_time() - self._boot_wall_time
        if abs(step) < STEP_SECONDS or self._scheduler is None:
            return
        self._boot_wall_time += step
        log.warning("the wall clock was stepped; the next probe follows it", extra={"seconds": round(step)})
        for job in self._scheduler.get_jobs():
            job.modify(next_run_time=job.next_run_time + timedelta(seconds=step))

    def bring_forward(self) -> None:
        """Make the next run due now. The run after it is due one interval later."""
        for job in () if self._scheduler is None else self._scheduler.get_jobs():
            job.modify(next_run_time=datetime.now(timezone.utc))

    def next_run(self) -> float | None:
        """Return the wall time of the next run in seconds since the epoch; None if none is scheduled."""
        jobs = [] if self._scheduler is None else self._scheduler.get_jobs()
        times = [job.next_run_time.timestamp() for job in jobs if job.next_run_time is not None]
        return min(times, default=None)


def _log_trouble(event: Any) -> None:
    log.warning("scheduled probe: %s", _TROUBLES[event.code], exc_info=getattr(event, "exception", None))


def _boot_wall_time() -> float:
    """Return the boot time in seconds since the epoch, computed from the current wall clock."""
    return time.time() - boot_clock()
