"""How long a run that is due by schedule waits: a skip would last until the next one is due. Pure."""

from __future__ import annotations

from gpumon.probe.guard import may_run
from gpumon.probe.situation import Situation
from gpumon.report import Report

LOOK_SECONDS = 0.25
"""How often a run looks whether enough is known, before it begins."""
IDLE_LOOK_SECONDS = 5.0
"""How often a run that waits for idle GPUs looks at them."""
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
    status = report.memory.status
    polled = report.node.snapshot_timestamp_seconds is not None or (status is not None and not status.up)
    return polled and (report.memory.recalled or report.node.store_up == 0)
