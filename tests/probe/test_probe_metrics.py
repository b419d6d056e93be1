from __future__ import annotations

from dataclasses import replace

from gpumon.model.reading import samples
from gpumon.probe.core import probe_metrics
from gpumon.probe.core.probe_metrics import ProbeMetrics
from gpumon.probe.core.result import OUTCOMES, SKIP_REASONS, Comparison, Conditions, Measurement, ProbeResult

OK = ProbeResult(
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
KEY = "nccl,default,1073741824"
INITIAL = probe_metrics.INITIAL["allreduce"]


def fold_result(metrics: ProbeMetrics, result: ProbeResult) -> ProbeMetrics:
    """Return the metrics of the all-reduce after a run."""
    return probe_metrics.fold_result({"allreduce": metrics}, result)["allreduce"]


def test_every_outcome_and_reason_exists_before_the_first_run() -> None:
    """Counters of every outcome and reason start at 0, and there is no bandwidth yet."""
    assert INITIAL.runs_total == dict.fromkeys(OUTCOMES, 0.0)
    assert INITIAL.skips_total == dict.fromkeys(SKIP_REASONS, 0.0)
    assert INITIAL.value is None
    assert INITIAL.running == 0


def test_a_success_exports_its_measurements() -> None:
    """Bandwidths, latencies, ranks and times of a successful run are exported under its labels."""
    metrics = fold_result(INITIAL, OK)
    assert metrics.value == {KEY: 350e9}
    assert getattr(metrics, metrics.PROBE.raw_metric) == {KEY: 200e9}
    assert metrics.latency_seconds == {f"{KEY},p50": 5.37e-3, f"{KEY},p95": 5.5e-3, f"{KEY},p99": 5.6e-3}
    assert metrics.last_run_timestamp_seconds == metrics.last_success_timestamp_seconds == 1004.0
    labels = (("backend", "nccl"), ("algorithm", "default"), ("bytes", "1073741824"))
    assert ("gpumon_probe_allreduce_busbw_bytes_per_second", labels, 350e9) in list(samples(metrics, ()))


def test_a_partial_run_changes_no_bandwidth() -> None:
    gpus = tuple(f"GPU-{index}" for index in range(4))
    partial = replace(OK, ranks=4, started=2000.0, conditions=Conditions(gpus=gpus, host_gpus=8), measurements=())
    metrics = fold_result(fold_result(INITIAL, OK), partial)
    assert (metrics.value, metrics.ranks) == ({KEY: 350e9}, {"nccl": 8.0})
    assert metrics.last_success_timestamp_seconds == 2004.0


def test_a_failure_leaves_the_bandwidth_of_the_last_success() -> None:
    """A failed run is counted, changes the time of the last run, and leaves the measurements unchanged."""
    failed = replace(OK, outcome="failed", started=2000.0, measurements=(), wrong_elements=None)
    metrics = fold_result(fold_result(INITIAL, OK), failed)
    assert metrics.value == {KEY: 350e9}
    assert metrics.wrong_elements == {"nccl": 0.0}
    assert (metrics.last_run_timestamp_seconds, metrics.last_success_timestamp_seconds) == (2004.0, 1004.0)
    assert metrics.runs_total == dict.fromkeys(OUTCOMES, 0.0) | {"ok": 1.0, "failed": 1.0}


def test_wrong_data_stays_until_a_run_has_checked_again() -> None:
    """Only a run that checks data resets the wrong elements; a wrong run exports no bandwidth."""
    metrics = fold_result(INITIAL, replace(OK, outcome="wrong", wrong_elements=6))
    metrics = fold_result(metrics, replace(OK, outcome="skipped", reason="busy", ranks=0, wrong_elements=None))
    assert metrics.wrong_elements == {"nccl": 6.0}
    assert metrics.value is None
    assert fold_result(metrics, OK).wrong_elements == {"nccl": 0.0}


def test_a_skip_counts_by_reason_and_changes_no_time() -> None:
    """A skipped run is counted by reason, and leaves duration and time of the last run unchanged."""
    skip = ProbeResult(id="two", probe="allreduce", outcome="skipped", reason="busy", started=9000.0)
    metrics = fold_result(fold_result(INITIAL, OK), skip)
    assert metrics.skips_total is not None
    assert metrics.skips_total["busy"] == 1
    assert (metrics.last_run_timestamp_seconds, metrics.duration_seconds) == (1004.0, 4.0)


def test_measurements_are_those_of_the_last_run() -> None:
    compared = Comparison(
        operation="all_reduce",
        algorithm="default",
        dtype="float32",
        size=1 << 30,
        value=3.0,
        baseline=2.0,
    )
    default = fold_result(INITIAL, replace(OK, comparisons=(compared,)))
    assert default.baseline_ratio == {"nccl,default": 1.5}
    measured = tuple(replace(measurement, algorithm="ring") for measurement in OK.measurements)
    ring = fold_result(default, replace(OK, measurements=measured))
    assert set(ring.value or ()) == {"nccl,ring,1073741824"}
    assert (ring.baseline_ratio, len(ring.latency_seconds or ())) == ({}, 3)
    gloo = fold_result(ring, replace(OK, backend="gloo"))
    assert set(gloo.value or ()) == {"gloo,default,1073741824"}
