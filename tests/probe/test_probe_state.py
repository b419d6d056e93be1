"""Results of probes in the Report: the current one, those of other probes, and their metrics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import example_node as example
import pytest
from changed_report import new_report
from each_case import each_case

from gpumon.model.instant import Now
from gpumon.model.reading import rows
from gpumon.probe.core import probe_metrics
from gpumon.probe.core.probe_metrics import INITIAL, METRICS, ProbeMetrics, metric_table
from gpumon.probe.core.probes import PROBES, Probe
from gpumon.probe.core.result import (
    OUTCOMES,
    SKIP_REASONS,
    Comparison,
    Conditions,
    Measurement,
    ProbeResult,
    current_result,
)
from gpumon.probe.core.state import MAX_COMPLETED_RUNS, ProbeState, begin_run, end_run, restore
from gpumon.probe.core.wording import index_ranges
from gpumon.state.messages import AgentStatus
from gpumon.state.reduce import reduce
from gpumon.state.section import ReducerSettings

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


MEASURED = ProbeResult(
    id="one",
    probe="allreduce",
    outcome="ok",
    started=1000.0,
    duration_seconds=4.0,
    backend="nccl",
    ranks=8,
    versions={"torch": "2.13.0"},
    measurements=(
        Measurement(
            size=1 << 30,
            iterations=20,
            raw_value=200e9,
            value=350e9,
            latency_seconds={"p50": 5.37e-3, "p95": 5.5e-3, "p99": 5.6e-3},
            wrong_elements=0,
        ),
    ),
    wrong_elements=0,
)
NO_RUN = probe_metrics.INITIAL["allreduce"]


def fold_result(metrics: ProbeMetrics, result: ProbeResult) -> ProbeMetrics:
    """Return the metrics of the all-reduce after a run."""
    return probe_metrics.fold_result({"allreduce": metrics}, result)["allreduce"]


def test_a_partial_run_changes_no_bandwidth() -> None:
    gpus = tuple(f"GPU-{index}" for index in range(4))
    partial = replace(MEASURED, ranks=4, started=2000.0, conditions=Conditions(gpus=gpus, host_gpus=8), measurements=())
    metrics = fold_result(fold_result(NO_RUN, MEASURED), partial)
    assert (metrics.value, metrics.ranks) == ({"nccl,default,1073741824": 350e9}, {"nccl": 8.0})
    assert metrics.last_success_timestamp_seconds == 2004.0


def test_measurements_are_those_of_the_last_run() -> None:
    compared = Comparison(
        operation="all_reduce",
        algorithm="default",
        dtype="float32",
        size=1 << 30,
        value=3.0,
        baseline=2.0,
    )
    default = fold_result(NO_RUN, replace(MEASURED, comparisons=(compared,)))
    assert default.baseline_ratio == {"nccl,default": 1.5}
    measured = tuple(replace(measurement, algorithm="ring") for measurement in MEASURED.measurements)
    ring = fold_result(default, replace(MEASURED, measurements=measured))
    assert set(ring.value or ()) == {"nccl,ring,1073741824"}
    assert (ring.baseline_ratio, len(ring.latency_seconds or ())) == ({}, 3)
    gloo = fold_result(ring, replace(MEASURED, backend="gloo"))
    assert set(gloo.value or ()) == {"gloo,default,1073741824"}


TWO_TYPES = Probe(
    name="gemm",
    title="matrix product",
    quantity="flops",
    unit="flops_per_second",
    value=lambda size, _, seconds: 2.0 * size**3 / seconds,
    operations=("matmul",),
    dtypes=("float32", "bfloat16"),
    size_unit="rows",
)


def test_the_values_of_a_probe_of_several_types_have_a_label(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each type that the row of the probe names is exported, with its own ratio to its own median; no other type is."""
    monkeypatch.setitem(PROBES, "gemm", TWO_TYPES)
    table: Any = metric_table(TWO_TYPES)
    monkeypatch.setitem(cast("dict[str, type[ProbeMetrics]]", METRICS), "gemm", table)
    [whole] = MEASURED.measurements
    own = replace(whole, operation="matmul", size=512, value=8e9)
    measured = [replace(own, dtype=dtype) for dtype in ("float32", "bfloat16", "float64")]
    compared = [Comparison(dtype=each.dtype, size=512, value=8e9, baseline=4e9) for each in measured]
    result = replace(MEASURED, probe="gemm", measurements=tuple(measured), comparisons=tuple(compared))
    metrics = probe_metrics.fold_result({}, result)["gemm"]
    assert rows(table)["flops_per_second"].labels == ("backend", "precision", "algorithm", "rows")
    assert metrics.value == {"nccl,float32,default,512": 8e9, "nccl,bfloat16,default,512": 8e9}
    assert metrics.baseline_ratio == {"nccl,float32,default": 2.0, "nccl,bfloat16,default": 2.0}


def test_counters_of_a_newly_scheduled_probe_start_at_0() -> None:
    """A schedule that a reload added adds them; those of earlier runs on request continue."""
    status = AgentStatus(log_messages={}, store_up=True)
    settings = ReducerSettings(probe_intervals={"allreduce": 6 * 3600.0, "copy": 86400.0})
    fresh = new_report(probe=ProbeState(metrics=INITIAL))
    requested = replace(fresh, probe=end_run(fresh.probe, replace(OK, probe="copy", outcome="failed")))
    for report, failed in ((fresh, 0.0), (requested, 1.0)):
        metrics = reduce(report, status, Now(at=1.0, wall=1.0, uptime=1.0), settings).probe.metrics
        assert metrics["copy"].runs_total == {**dict.fromkeys(OUTCOMES, 0.0), "failed": failed}
        assert set(metrics["copy"].skips_total or ()) == set(SKIP_REASONS)
        assert metrics["allreduce"] == INITIAL["allreduce"]
