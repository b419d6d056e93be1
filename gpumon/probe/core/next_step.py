"""Chooses the next step of a pass. Pure.

The ranks first measure all sizes, and repeat those with a low value. If a value remains low, or if data was
wrong, pairs of ranks then exchange data to locate the fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpumon.probe.core.baseline import Judge, saturating_measurements
from gpumon.probe.core.locate import culprits, slow_pairs
from gpumon.probe.core.passes import Pass, measurements, pairs, step_measurements
from gpumon.probe.core.plan import Measure, Pairs, Step, rounds
from gpumon.probe.core.result import Comparison, Measurement

MAX_PAIR_BYTES = 256 << 20
"""Max bytes of an exchange between two ranks. That is enough to saturate a link."""
TRIES, MAX_TRIES = 2, 5
"""Max measurements of a slow pair: TRIES if every slow pair includes the ranks to blame, else MAX_TRIES."""


def next_step(run_pass: Pass, judge: Judge) -> Step | None:
    """Return the step that follows the steps that all ranks have done; None if the pass is complete."""
    planned = run_pass.plan.measures
    if len(run_pass.steps) < len(planned):
        return planned[len(run_pass.steps)]
    tries = [step for step in run_pass.steps if isinstance(step, Pairs)]
    if tries:
        return _repeat_slow_pairs(run_pass, tries)
    if any(measurement.wrong_elements for measurement in measurements(run_pass)):
        return _pairs(run_pass)
    repeated = len(run_pass.steps) - len(planned)
    low_steps = _low_steps(run_pass, judge)
    if repeated < len(low_steps):
        return low_steps[repeated]
    return _pairs(run_pass) if comparisons(run_pass, judge, low=True) else None


def _repeat_slow_pairs(run_pass: Pass, tries: Sequence[Pairs]) -> Pairs | None:
    measured = pairs(run_pass)
    slow, named = set(slow_pairs(measured)), set(culprits(measured, run_pass.plan.ranks))
    max_tries = TRIES if named and all(named <= set(pair) for pair in slow) else MAX_TRIES
    if not slow or len(tries) >= max_tries or any(any(pair.wrong_elements) for pair in measured):
        return None
    rounds_left = (tuple(pair for pair in together if pair in slow) for together in tries[0].rounds)
    return replace(tries[0], rounds=tuple(filter(None, rounds_left)))


def comparisons(run_pass: Pass, judge: Judge, *, low: bool = False) -> tuple[Comparison, ...]:
    """Return the comparisons of all measurements, as `_compare` does. `low`: only those whose value is too low."""
    compared = _compare(run_pass, measurements(run_pass), judge)
    return tuple(comparison for comparison in compared if comparison.below_reference or not low)


def _low_steps(run_pass: Pass, judge: Judge) -> list[Measure]:
    """Return the planned steps with only the sizes that measured low values, to repeat them: healthy hosts vary."""
    low_steps = []
    for number, step in enumerate(run_pass.plan.measures):
        compared = _compare(run_pass, step_measurements(run_pass, number, step), judge)
        sizes = tuple(comparison.size for comparison in compared if comparison.below_reference)
        if sizes:
            low_steps.append(replace(step, sizes=sizes))
    return low_steps


def _compare(run_pass: Pass, measured: Sequence[Measurement], judge: Judge) -> tuple[Comparison, ...]:
    """Return the comparisons of the sizes that saturate the hardware; () until the largest planned size is measured."""
    if all(measurement.size < max(run_pass.plan.setting.sizes) for measurement in measured):
        return ()
    return tuple(
        judge.compare(measurement, ranks=run_pass.plan.ranks, versions=run_pass.versions)
        for measurement in saturating_measurements(measured)
    )


def _pairs(run_pass: Pass) -> Pairs | None:
    if run_pass.plan.ranks == 1 or run_pass.plan.probe.alone:
        return None
    size = min(MAX_PAIR_BYTES, max(run_pass.plan.setting.sizes))
    return Pairs(bytes=size, rounds=rounds(run_pass.plan.ranks))
