"""What has been done to GPUs since a run of the all-reduce: what it measured is of those that they were then. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from gpumon.health.terms import FAIL
from gpumon.health.verdict import REPAIRS, Change, Ruling
from gpumon.probe.result import ProbeResult
from gpumon.state import GpuState


def mended(
    run: ProbeResult,
    gpus: Iterable[GpuState],
    rulings: Iterable[Ruling],
    *,
    wall: Callable[[float], float],
    since: Callable[[Ruling], float],
) -> Iterator[str]:
    """In words. `wall`: the moment of one on the boot clock; `since`: when a ruling came."""
    if not run.conditions.gpus:
        return
    end = run.started + run.duration_seconds
    for state in gpus:
        if run.is_whole and state.uuid not in run.conditions.gpus:
            yield f"GPU {state.index} was replaced"
        elif state.begun_at is not None and wall(state.begun_at) > end:
            yield f"GPU {state.index} was reset, or the driver loaded again"
    for one in rulings:
        repaired = one.change is Change.CLEARED and one.way in REPAIRS and one.verdict.level is FAIL
        if repaired and since(one) > end and one.verdict.device:
            yield "a GPU was repaired"
