"""Calls when runs of probes are due. This module runs the scheduler of APScheduler."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_MAX_INSTANCES, EVENT_JOB_MISSED
from apscheduler.schedulers.background import BackgroundScheduler

from gpumon.probe.core.timetable import Timetable

log = logging.getLogger("gpumon.probe")

_TROUBLES = {
    EVENT_JOB_MISSED: "missed",
    EVENT_JOB_ERROR: "error",
    EVENT_JOB_MAX_INSTANCES: "overrun",
}


class Schedule:
    """Calls `fire` with the name of a probe, in a thread of APScheduler, whenever a run of it is due.

    `fire` must return at once, as Loop.post does.
    """

    def __init__(self, fire: Callable[[str], None], timetables: Mapping[str, Timetable]) -> None:
        self._fire = fire
        self._timetables = timetables
        self._scheduler: Any = None

    def start(self) -> None:
        """Start the scheduler.

        A run that is late, for example because the host was suspended or its wall clock was stepped forward, takes
        place once, as soon as possible.
        """
        late_rather_than_never = {"coalesce": True, "misfire_grace_time": None, "max_instances": 1}
        self._scheduler = BackgroundScheduler(job_defaults=late_rather_than_never)
        self._scheduler.add_listener(_log_trouble, sum(_TROUBLES))
        self._scheduler.start()
        for probe, timetable in self._timetables.items():
            self._add(probe, timetable)

    def stop(self) -> None:
        if self._scheduler is not None:
            self._scheduler.shutdown(wait=False)
            self._scheduler = None

    def apply(self, timetables: Mapping[str, Timetable]) -> None:
        """Replace the jobs whose timetable has changed."""
        before, self._timetables = self._timetables, timetables
        if self._scheduler is None:
            return
        for probe in before.keys() - timetables.keys():
            self._scheduler.remove_job(probe)
        for probe, timetable in timetables.items():
            if before.get(probe) != timetable:
                self._add(probe, timetable)

    def bring_forward(self, probe: str) -> None:
        """Make the next run of a probe due now. The run after it is due as the timetable states."""
        job = None if self._scheduler is None else self._scheduler.get_job(probe)
        if job is not None:
            job.modify(next_run_time=datetime.now(timezone.utc))

    def next_runs(self) -> Mapping[str, float]:
        """Return the wall time of the next run in seconds since the epoch, by name of the probe."""
        jobs = [] if self._scheduler is None else self._scheduler.get_jobs()
        return {job.id: job.next_run_time.timestamp() for job in jobs if job.next_run_time is not None}

    def _add(self, probe: str, timetable: Timetable) -> None:
        first = {}
        if timetable.interval is not None:
            first["next_run_time"] = datetime.now(timezone.utc) + timedelta(seconds=timetable.initial_delay)
        self._scheduler.add_job(
            self._fire, timetable.trigger(), args=(probe,), id=probe, replace_existing=True, **first
        )


def _log_trouble(event: Any) -> None:
    log.warning(
        "scheduled probe: %s",
        _TROUBLES[event.code],
        extra={"probe": event.job_id},
        exc_info=getattr(event, "exception", None),
    )
