"""Changes of the probe state when runs begin and end."""

from __future__ import annotations

from dataclasses import replace

import example_node as example

from gpumon.probe.core.probe_metrics import INITIAL
from gpumon.probe.core.state import MAX_COMPLETED_RUNS, ProbeState, begin_run, end_run

OK = example.run(1)
OTHER = replace(example.run(0), id="other", probe="broadcast")
BEFORE = end_run(ProbeState(metrics=INITIAL), OK)


def test_another_probe_changes_no_all_reduce_state() -> None:
    during = begin_run(BEFORE, "other", "broadcast")
    assert (during.running, during.running_probe, during.metrics["allreduce"].running) == ("other", "broadcast", 1)
    after = end_run(during, OTHER)
    assert (after.last("allreduce"), after.history, after.running) == (OK, (OK, OTHER), None)
    assert after.metrics == BEFORE.metrics


def test_runs_of_another_probe_do_not_displace_all_reduce_runs() -> None:
    state = BEFORE
    for number in range(MAX_COMPLETED_RUNS + 1):
        state = end_run(state, replace(OTHER, id=f"other {number}", outcome="failed", started=OK.started + 1 + number))
    assert state.ran[0] == OK
    assert len(state.ran) == 1 + MAX_COMPLETED_RUNS
    assert [result.id for result in state.results] == [
        OK.id,
        *(f"other {number}" for number in range(MAX_COMPLETED_RUNS + 1)),
    ]


def test_a_late_result_does_not_end_the_next_run() -> None:
    during = end_run(begin_run(BEFORE, "next", "allreduce"), replace(OK, id="late"))
    assert (during.running, during.metrics["allreduce"].running) == ("next", 1)
    assert end_run(during, replace(OK, id="next")).metrics["allreduce"].running == 0
