"""What has been done to GPUs since a run of the all-reduce: what it measured is of those that they were then. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from gpumon.health.terms import FAIL
from gpumon.health.verdict import REPAIRS, VerdictChange, VerdictTransition
from gpumon.model.gpu_state import GpuState
from gpumon.probe.core.result import ProbeResult


class Mended(NamedTuple):
    """One thing that was done."""

    uuid: str
    """Of the GPU to which."""
    words: str


def mended(
    runs: Sequence[ProbeResult],
    gpus: Iterable[GpuState],
    transitions: Iterable[VerdictTransition],
    *,
    wall: Callable[[float], float],
    since: Callable[[VerdictTransition], float],
) -> Iterator[Mended]:
    """Of each GPU since the last of these in which it took part. `runs`: the newest last.

    `wall`: the moment of one on the boot clock; `since`: when a ruling came.
    """
    if not runs or not runs[-1].conditions.gpus:
        return
    for state in gpus:
        end = _ended(runs, state.uuid)
        if end is None:
            if any(run.is_whole for run in runs):
                yield Mended(state.uuid, f"GPU {state.index} was replaced")
        elif state.reset_at is not None and wall(state.reset_at) > end:
            yield Mended(state.uuid, f"GPU {state.index} was reset, or the driver loaded again")
    for one in transitions:
        repaired = one.change is VerdictChange.CLEARED and one.way in REPAIRS and one.verdict.level is FAIL
        if repaired and one.verdict.device and since(one) > (_ended(runs, one.verdict.device) or runs[-1].ended):
            yield Mended(one.verdict.device, "a GPU was repaired")


def _ended(runs: Sequence[ProbeResult], uuid: str) -> float | None:
    """When the last in which it took part did; None: it took part in none."""
    return next((run.ended for run in reversed(runs) if uuid in run.conditions.gpus), None)
