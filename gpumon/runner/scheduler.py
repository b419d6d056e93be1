"""Begins scheduled probe runs, as their timetables state and early after a repair. It runs APScheduler's scheduler.

A due run waits until the GPUs have been read and have been idle long enough. If GPUs are in use, the run is skipped, or
leaves these GPUs out if the configuration allows it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_MAX_INSTANCES, EVENT_JOB_MISSED
from apscheduler.schedulers.background import BackgroundScheduler

from gpumon.clock import boot_clock
from gpumon.health.run_conditions import repairs_since_run
from gpumon.model.instant import Instant
from gpumon.probe.core.preflight import PreflightFacts, is_partial, may_run, usable_gpus
from gpumon.probe.core.settings import Timetable
from gpumon.runner.probe_host import SCHEDULE
from gpumon.runner.runs import ProbeRuns
from gpumon.state.report import Report
from gpumon.supervisor.loop import Loop, Timer

log = logging.getLogger("gpumon.probe")

_TROUBLES = {EVENT_JOB_MISSED: "missed", EVENT_JOB_ERROR: "error", EVENT_JOB_MAX_INSTANCES: "overrun"}


class Schedule:
    """Calls `fire`, which must return at once, with a probe whose run is due, in a thread of APScheduler."""

    def __init__(self, fire: Callable[[str], None], timetables: Mapping[str, Timetable]) -> None:
        self._fire = fire
        self._timetables = timetables
        self._scheduler: Any = None

    def start(self) -> None:
        """Start the scheduler. A run that is late, as after a suspend, takes place once, as soon as possible."""
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


START_INTERVAL = 0.25
"""Seconds between checks whether GPUs and store have been read, while a run is due."""
IDLE_INTERVAL = 5.0
"""Max seconds between checks whether the GPUs are idle, while a run is due."""
REPAIR_INTERVAL = 1800.0
"""Min seconds between an early run and a previous run that was skipped or partial."""
SCHEDULER_PATIENCE = 30.0
"""Max seconds that a due run waits for the detection of the host's scheduler."""


class ProbeScheduler(Schedule):
    """Begins probe runs by schedule. Use from the loop's thread."""

    def __init__(self, loop: Loop, runs: ProbeRuns, timetables: Mapping[str, Timetable]) -> None:
        super().__init__(self.run_due, timetables)
        self._loop = loop
        self._runs = runs
        self._waiting: dict[str, Timer] = {}
        self._due_at: dict[str, float] = {}
        """Time on the boot clock at which the waiting run was due, by name of the probe."""

    def tick(self) -> None:
        """Bring the next run of each scheduled probe forward after a repair."""
        for probe in self.next_runs():
            if self.is_due_early(probe):
                log.info("GPUs were repaired; the next probe run begins now", extra={"probe": probe})
                self.bring_forward(probe)

    def run_due(self, probe: str) -> None:
        """Begin the scheduled run of a probe as soon as it may begin. Callable from any thread."""

        def begin() -> None:
            self._due_at[probe] = boot_clock()
            self._begin_or_wait(probe)

        self._loop.post(begin)

    def is_due_early(self, probe: str) -> bool:
        """Return whether the next run of a probe should begin now because a GPU was repaired."""
        runs = self._runs
        if runs.running or runs.stopping:
            return False
        return is_due_early(probe, runs.host.latest(), self._facts(probe), wall=time.time(), at=boot_clock())

    def _begin_or_wait(self, probe: str) -> None:
        """Begin the due run, or try later if another probe runs, or if GPUs were not read or are not idle long enough.

        Preflight would skip it now, and the next run is due much later.
        """
        waiting = self._waiting.pop(probe, None)
        if waiting is not None:
            waiting.cancel()
        runs = self._runs
        current = runs.host.current
        if runs.stopping or (current is not None and current.probe.name == probe):
            return
        if current is not None:
            self._due_at[probe] = boot_clock()
            self._wait(probe, IDLE_INTERVAL)
            return
        seconds = pause(runs.host.latest(), self._facts(probe), boot_clock() - self._due_at[probe])
        if seconds is None:
            runs.begin(runs.probes[probe], SCHEDULE)
        else:
            self._wait(probe, seconds)

    def _wait(self, probe: str, seconds: float) -> None:
        self._waiting[probe] = self._loop.call_after(seconds, lambda: self._begin_or_wait(probe))

    def _facts(self, probe: str) -> PreflightFacts:
        return self._runs.host.facts(self._runs.probes[probe], SCHEDULE)


def pause(report: Report, facts: PreflightFacts, waited: float) -> float | None:
    """Return the seconds until a run that was due for `waited` seconds is tried again; None to begin it now."""
    status = report.inventory.status
    polled = report.node.snapshot_timestamp_seconds is not None or (status is not None and not status.up)
    restored = report.agent.restored or report.node.store_up == 0
    determined = facts.simulated or facts.gated or facts.schedulers is not None or waited > SCHEDULER_PATIENCE
    if not (polled and restored and determined):
        return START_INTERVAL
    skip = may_run(facts)
    if skip is None or skip.wait is None or waited > facts.min_idle_seconds + SCHEDULER_PATIENCE:
        return None
    return min(skip.wait, IDLE_INTERVAL)


def is_due_early(probe: str, report: Report, facts: PreflightFacts, *, wall: float, at: float) -> bool:
    """Return whether a GPU was repaired since the last run of a probe and nothing prevents a run now.

    `wall`: now, in seconds since the epoch. `at`: now, in seconds on the boot clock.
    """
    last = report.probe.last(probe)
    attempted = last is not None and (last.outcome == "skipped" or not last.is_whole)
    if last is not None and attempted and 0 <= wall - last.started < REPAIR_INTERVAL:
        return False
    runs = [run for run in report.probe.ran if run.probe == probe]
    repairs = repairs_since_run(runs, report.gpus, report.health.history, Instant(report.boot_id, at, wall))
    repaired = any(not is_partial(facts) or repair.uuid in usable_gpus(facts) for repair in repairs)
    return repaired and pause(report, facts, 0.0) is None and may_run(facts) is None
