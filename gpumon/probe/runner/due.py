"""How long a run that is due by schedule waits, as a skip would last until the next; and what makes one due. Pure."""

from __future__ import annotations

from gpumon.health.mended import mended
from gpumon.probe.core.conditions import Situation
from gpumon.probe.core.preflight import is_partial, may_run, usable
from gpumon.probe.core.probes import ALL_REDUCE
from gpumon.state.report import Report

LOOK_SECONDS = 0.25
"""How often a run looks whether enough is known, before it begins."""
IDLE_LOOK_SECONDS = 5.0
"""How often a run that waits for idle GPUs looks at them."""
AGAIN_SECONDS = 1800.0
"""Between two runs that are due because of a repair: the one before was skipped, by the scheduler or for a job."""
FIND_SECONDS = 30.0
"""How long it waits to be told whether there is a scheduler; then nobody can tell."""


def pause(report: Report, now: Situation, waited: float) -> float | None:
    """Seconds until it may be tried again; None: now, whatever becomes of it. `waited`: seconds since it was due."""
    if not _knows_enough(report, now, waited):
        return LOOK_SECONDS
    skip = may_run(now)
    if skip is None or skip.wait is None or waited > now.idle_seconds + FIND_SECONDS:
        return None
    return min(skip.wait, IDLE_LOOK_SECONDS)


def _knows_enough(report: Report, now: Situation, waited: float) -> bool:
    """Of the GPUs, and for as long as that may take, of what gives them to jobs."""
    found = now.simulated or now.gated or now.schedulers is not None
    return _looked(report) and (found or waited > FIND_SECONDS)


def _looked(report: Report) -> bool:
    """Whether a first poll has ended, or the driver has said why there is none; and the store has told, or cannot."""
    status = report.internal.status
    polled = report.node.snapshot_timestamp_seconds is not None or (status is not None and not status.up)
    return polled and (report.internal.recalled or report.node.store_up == 0)


def is_due_early(report: Report, now: Situation, *, wall: float, at: float) -> bool:
    """Whether the next run need not wait for its time: GPUs were repaired, and nothing is in its way.

    `wall` and `at`: now, in seconds since the epoch and on the boot clock.
    """
    last = report.probe.last
    tried = last is not None and (last.outcome == "skipped" or not last.is_whole)
    if last is not None and tried and 0 <= wall - last.started < AGAIN_SECONDS:
        return False
    return _is_repaired(report, now, wall, at) and pause(report, now, 0.0) is None and may_run(now) is None


def _is_repaired(report: Report, now: Situation, wall: float, at: float) -> bool:
    """Since the last run of the all-reduce, however it ended, a GPU that a run would measure."""
    ran = [one for one in report.probe.ran if one.probe == ALL_REDUCE]
    told = mended(
        ran, report.gpus, report.health.history, wall=lambda moment: wall - at + moment, since=lambda one: one.wall
    )
    return any(not is_partial(now) or one.uuid in usable(now) for one in told)
