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
"""Max message size between two ranks: enough to saturate a link."""
TRIES, MAX_TRIES = 2, 5
"""Number of measurements of a slow pair, and its maximum while slow pairs share no rank that could be named."""


def next_step(run_pass: Pass, judge: Judge) -> Step | None:
    """Return the step after those that all ranks have done; None at the end."""
    planned = run_pass.plan.measures
    if len(run_pass.steps) < len(planned):
        return planned[len(run_pass.steps)]
    tries = [step for step in run_pass.steps if isinstance(step, Pairs)]
    if tries:
        return _repeat_slow_pairs(run_pass, tries)
    if any(measurement.wrong_elements for measurement in measurements(run_pass)):
        return _pairs(run_pass)
    repeats = run_pass.steps[len(planned) :]
    low_steps = [
        step
        for step in (_repeat_low_sizes(run_pass, number, judge) for number in range(len(planned)))
        if step is not None
    ]
    if len(repeats) < len(low_steps):
        return low_steps[len(repeats)]
    return _pairs(run_pass) if comparisons(run_pass, judge, low=True) else None


def _repeat_slow_pairs(run_pass: Pass, tries: Sequence[Pairs]) -> Pairs | None:
    measured = pairs(run_pass)
    slow, named = set(slow_pairs(measured)), set(culprits(measured, run_pass.plan.ranks))
    max_tries = TRIES if named and all(named <= set(pair) for pair in slow) else MAX_TRIES
    if not slow or len(tries) >= max_tries or any(any(pair.wrong) for pair in measured):
        return None
    rounds_left = (tuple(pair for pair in together if pair in slow) for together in tries[0].rounds)
    return replace(tries[0], rounds=tuple(filter(None, rounds_left)))


def comparisons(run_pass: Pass, judge: Judge, *, low: bool = False) -> tuple[Comparison, ...]:
    """Compare each size that saturates the links; with `low`, return only those that are low."""
    compared = _compare(run_pass, measurements(run_pass), judge)
    return tuple(comparison for comparison in compared if comparison.low or not low)


def _repeat_low_sizes(run_pass: Pass, number: int, judge: Judge) -> Measure | None:
    """Return a repeat of low sizes: a drop counts only if a repeat confirms it, because healthy hosts vary too."""
    step = run_pass.plan.measures[number]
    low = [
        comparison.bytes
        for comparison in _compare(run_pass, step_measurements(run_pass, number, step), judge)
        if comparison.low
    ]
    if not low:
        return None
    return Measure(collective=step.collective, dtype=step.dtype, sizes=tuple(low))


def _compare(run_pass: Pass, measured: Sequence[Measurement], judge: Judge) -> tuple[Comparison, ...]:
    """Compare once the largest size is measured: which sizes saturate the links depends on it."""
    if all(measurement.bytes < max(run_pass.plan.setting.sizes) for measurement in measured):
        return ()
    return tuple(
        judge.compare(measurement, ranks=run_pass.plan.ranks, versions=run_pass.versions)
        for measurement in saturating(measured)
    )


def _pairs(run_pass: Pass) -> Pairs | None:
    if run_pass.plan.ranks == 1 or run_pass.plan.probe.alone:
        return None
    size = min(MAX_PAIR_BYTES, max(run_pass.plan.setting.sizes))
    return Pairs(bytes=size, rounds=rounds(run_pass.plan.ranks))
