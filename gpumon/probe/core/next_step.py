"""Choose the next step of a pass: measure, measure low sizes again, then measure pairs to locate the fault. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpumon.probe.core.baseline import Judge, saturating
from gpumon.probe.core.locate import culprits, slow_pairs
from gpumon.probe.core.passes import Pass, measurements, pairs, step_measurements
from gpumon.probe.core.plan import Measure, Pairs, Step, rounds
from gpumon.probe.core.result import Comparison, Measurement

MAX_PAIR_BYTES = 256 << 20
"""Enough to saturate a link."""
TRIES, MAX_TRIES = 2, 5
"""How often a slow pair is measured, and how often at most while slow pairs do not share the rank that would be
named.
"""


def next_step(one: Pass, judge: Judge) -> Step | None:
    """Return the step after those that all ranks have done; None at the end."""
    planned = one.plan.measures
    if len(one.steps) < len(planned):
        return planned[len(one.steps)]
    tries = [step for step in one.steps if isinstance(step, Pairs)]
    if tries:
        return _slow_again(one, tries)
    if any(measurement.wrong_elements for measurement in measurements(one)):
        return _pairs(one)
    repeats = one.steps[len(planned) :]
    again = [step for step in (_again(one, number, judge) for number in range(len(planned))) if step is not None]
    if len(repeats) < len(again):
        return again[len(repeats)]
    return _pairs(one) if comparisons(one, judge, low=True) else None


def _slow_again(one: Pass, tries: Sequence[Pairs]) -> Pairs | None:
    found = pairs(one)
    slow, named = set(slow_pairs(found)), set(culprits(found, one.plan.ranks))
    most = TRIES if named and all(named <= set(pair) for pair in slow) else MAX_TRIES
    if not slow or len(tries) >= most or any(any(pair.wrong) for pair in found):
        return None
    kept = (tuple(pair for pair in together if pair in slow) for together in tries[0].rounds)
    return replace(tries[0], rounds=tuple(filter(None, kept)))


def comparisons(one: Pass, judge: Judge, *, low: bool = False) -> tuple[Comparison, ...]:
    """Compare each size that saturates the links; with `low`, return only those that are low."""
    compared = _compared(one, measurements(one), judge)
    return tuple(comparison for comparison in compared if comparison.low or not low)


def _again(one: Pass, number: int, judge: Judge) -> Measure | None:
    """Return a repeat of low sizes: a drop counts only if a repeat confirms it, because healthy hosts vary too."""
    step = one.plan.measures[number]
    low = [
        comparison.bytes for comparison in _compared(one, step_measurements(one, number, step), judge) if comparison.low
    ]
    if not low:
        return None
    return Measure(collective=step.collective, dtype=step.dtype, sizes=tuple(low))


def _compared(one: Pass, found: Sequence[Measurement], judge: Judge) -> tuple[Comparison, ...]:
    """Compare once the largest size is measured: which sizes saturate the links depends on it."""
    if all(measurement.bytes < max(one.plan.setting.sizes) for measurement in found):
        return ()
    return tuple(
        judge.compare(measurement, ranks=one.plan.ranks, versions=one.versions) for measurement in saturating(found)
    )


def _pairs(one: Pass) -> Pairs | None:
    if one.plan.ranks == 1 or one.plan.probe.alone:
        return None
    size = min(MAX_PAIR_BYTES, max(one.plan.setting.sizes))
    return Pairs(bytes=size, rounds=rounds(one.plan.ranks))
