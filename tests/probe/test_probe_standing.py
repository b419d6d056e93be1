"""Selection of the run that is the current result of the all-reduce, if some runs were partial."""

from __future__ import annotations

from dataclasses import replace

import example_node as example
import pytest
from each_case import each_case

from gpumon.probe.core.probe_metrics import INITIAL
from gpumon.probe.core.result import ProbeResult, current_result
from gpumon.probe.core.state import MAX_COMPLETED_RUNS, ProbeState, end_run, restore
from gpumon.probe.core.wording import index_ranges

WRONG = replace(example.run(90, outcome="wrong"), wrong_elements=31)
SLOW = example.run(80, outcome="degraded")
FAILED = example.run(70, outcome="failed")
LOWER, UPPER = (0, 1, 2, 3), (4, 5, 6, 7)


def partial_run(hours: int, indexes: tuple[int, ...] = UPPER, outcome: str = "ok") -> ProbeResult:
    return example.part(hours, *indexes, outcome=outcome)


def state_after(*runs: ProbeResult) -> ProbeState:
    state = ProbeState(metrics=INITIAL)
    for run in runs:
        state = end_run(state, run)
    return state


@each_case(
    ("runs", "current"),
    [
        ((), None),
        ((WRONG, example.run(5)), 1),
        ((example.run(5), partial_run(4)), 1),
        ((WRONG, partial_run(5)), 0),
        ((SLOW, partial_run(5)), 0),
        ((FAILED, partial_run(5)), 0),
        ((WRONG, partial_run(5, outcome="degraded")), 0),
        ((WRONG, partial_run(5, outcome="degraded"), partial_run(4, LOWER)), 0),
        ((WRONG, partial_run(5), partial_run(4, LOWER)), 0),
        ((WRONG, partial_run(5, outcome="wrong")), 1),
        ((WRONG, partial_run(5, outcome="failed"), partial_run(4)), 0),
        ((WRONG, example.run(5), partial_run(4)), 2),
        ((partial_run(5, LOWER, "wrong"), partial_run(4)), 0),
        ((partial_run(5, LOWER, "wrong"), partial_run(4, (*LOWER, 4))), 1),
        ((partial_run(5, LOWER, "wrong"), partial_run(4, LOWER), partial_run(3)), 2),
    ],
)
def test_a_success_replaces_a_failure_only_on_its_gpus(runs: tuple[ProbeResult, ...], current: int | None) -> None:
    assert current_result(runs, "allreduce") == (None if current is None else runs[current])


def test_wrong_elements_stay_until_the_same_gpus_are_checked_again() -> None:
    state = state_after(WRONG, partial_run(9), partial_run(8, outcome="degraded"))
    restored = restore(ProbeState(metrics=INITIAL), state.history, {})
    for present in (state, restored):
        assert present.metrics["allreduce"].wrong_elements == {"nccl": 31.0}
        assert end_run(present, example.run(1)).metrics["allreduce"].wrong_elements == {"nccl": 0.0}


def test_partial_runs_do_not_displace_the_current_result() -> None:
    state = state_after(
        WRONG, *(replace(partial_run(80), id=f"run {number}") for number in range(3 * MAX_COMPLETED_RUNS))
    )
    assert current_result(state.ran, "allreduce") == WRONG
    assert len(state.ran) == MAX_COMPLETED_RUNS + 1
    assert state.metrics["allreduce"].wrong_elements == {"nccl": 31.0}


@pytest.mark.parametrize(
    ("indexes", "words"),
    [((7, 4, 5, 6), "4 to 7"), ((1, 0), "0 and 1"), ((0, 1, 2, 5, 7), "0 to 2, 5 and 7"), ((3,), "3")],
)
def test_indexes_are_written_as_ranges(indexes: tuple[int, ...], words: str) -> None:
    """GPU indexes are written in ascending order, and as ranges if consecutive."""
    assert index_ranges(indexes) == words
