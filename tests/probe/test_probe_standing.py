"""Which run tells how the all-reduce stands, where some left GPUs out."""

from __future__ import annotations

from dataclasses import replace

import example_node as example
import pytest
from each_case import each_case

from gpumon.probe.core.current_result import current_result
from gpumon.probe.core.metrics import INITIAL
from gpumon.probe.core.result import ProbeResult
from gpumon.probe.core.state import MAX_COMPLETED_RUNS, ProbeState, end_run, restore
from gpumon.probe.core.wording import index_ranges

WRONG = replace(example.run(90, outcome="wrong"), wrong_elements=31)
SLOW = example.run(80, outcome="degraded")
FAILED = example.run(70, outcome="failed")
LOWER, UPPER = (0, 1, 2, 3), (4, 5, 6, 7)


def some(hours: int, indexes: tuple[int, ...] = UPPER, outcome: str = "ok") -> ProbeResult:
    return example.part(hours, *indexes, outcome=outcome)


def after(*runs: ProbeResult) -> ProbeState:
    state = ProbeState(metrics=INITIAL)
    for run in runs:
        state = end_run(state, run)
    return state


@each_case(
    ("runs", "stands"),
    [
        ((), None),
        ((WRONG, example.run(5)), 1),
        ((example.run(5), some(4)), 1),
        ((WRONG, some(5)), 0),
        ((SLOW, some(5)), 0),
        ((FAILED, some(5)), 0),
        ((WRONG, some(5, outcome="degraded")), 0),
        ((WRONG, some(5, outcome="degraded"), some(4, LOWER)), 0),
        ((WRONG, some(5), some(4, LOWER)), 0),
        ((WRONG, some(5, outcome="wrong")), 1),
        ((WRONG, some(5, outcome="failed"), some(4)), 0),
        ((WRONG, example.run(5), some(4)), 2),
        ((some(5, LOWER, "wrong"), some(4)), 0),
        ((some(5, LOWER, "wrong"), some(4, (*LOWER, 4))), 1),
        ((some(5, LOWER, "wrong"), some(4, LOWER), some(3)), 2),
    ],
)
def test_a_success_answers_only_for_the_gpus_that_it_had(runs: tuple[ProbeResult, ...], stands: int | None) -> None:
    """What was not well with others stands until they are in a run that is."""
    assert current_result(runs, "allreduce") == (None if stands is None else runs[stands])


def test_wrong_elements_stay_until_the_same_gpus_are_checked_again() -> None:
    """Also over a restart; runs on others are no all-clear, and a whole one is."""
    state = after(WRONG, some(9), some(8, outcome="degraded"))
    again = restore(ProbeState(metrics=INITIAL), state.history, {}, {})
    for known in (state, again):
        assert known.metrics.wrong_elements == {"nccl": 31.0}
        assert end_run(known, example.run(1)).metrics.wrong_elements == {"nccl": 0.0}


def test_a_run_that_stands_is_not_forgotten_for_those_that_left_its_gpus_out() -> None:
    """Jobs may keep a GPU for weeks, and what was wrong with it is still so."""
    state = after(WRONG, *(replace(some(80), id=f"run {number}") for number in range(3 * MAX_COMPLETED_RUNS)))
    assert current_result(state.ran, "allreduce") == WRONG
    assert len(state.ran) == MAX_COMPLETED_RUNS + 1
    assert state.metrics.wrong_elements == {"nccl": 31.0}


@pytest.mark.parametrize(
    ("indexes", "words"),
    [((7, 4, 5, 6), "4 to 7"), ((1, 0), "0 and 1"), ((0, 1, 2, 5, 7), "0 to 2, 5 and 7"), ((3,), "3")],
)
def test_gpus_are_told_by_their_numbers(indexes: tuple[int, ...], words: str) -> None:
    """In their order, and as a range where there is one."""
    assert index_ranges(indexes) == words
