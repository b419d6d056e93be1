"""Repairs of GPUs since their last all-reduce run, whose results do not apply to a repaired GPU. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from gpumon.health.verdict import FAIL, VerdictTransition
from gpumon.model.gpu_state import GpuState
from gpumon.model.instant import Instant
from gpumon.probe.core.result import ProbeResult


class RepairSinceRun(NamedTuple):
    """One repair of a GPU since its last all-reduce run."""

    uuid: str
    """uuid of the repaired GPU."""
    words: str
    """Completes "No all-reduce has run since ..."."""


def repairs_since_run(
    runs: Sequence[ProbeResult],
    gpus: Iterable[GpuState],
    transitions: Iterable[VerdictTransition],
    now: Instant,
) -> Iterator[RepairSinceRun]:
    """Yield the repairs of each GPU since the last run that used it: replacement, reset, or the clearing of a failure.

    `runs`: complete runs, newest last; if the last one used no GPU, yield nothing.
    """
    if not runs or not runs[-1].conditions.gpus:
        return
    uuids = set()
    for state in gpus:
        uuids.add(state.uuid)
        end = _last_run_end(runs, state.uuid)
        if end is None:
            if any(run.is_whole for run in runs):
                yield RepairSinceRun(state.uuid, f"GPU {state.index} was replaced")
        elif state.reset_at is not None and now.wall - (now.at - state.reset_at) > end:
            yield RepairSinceRun(state.uuid, f"GPU {state.index} was reset, or the driver loaded again")
    for transition in transitions:
        verdict = transition.verdict
        repaired = transition.is_repair and verdict.level is FAIL and verdict.device in uuids
        if repaired and transition.time.on_clock(now) > (_last_run_end(runs, verdict.device) or runs[-1].ended):
            yield RepairSinceRun(verdict.device, "a GPU was repaired")


def _last_run_end(runs: Sequence[ProbeResult], uuid: str) -> float | None:
    """Return when the last run that used this GPU ended, in seconds since the epoch; None if there is no such run."""
    return next((run.ended for run in reversed(runs) if uuid in run.conditions.gpus), None)
