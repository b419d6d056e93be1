"""The metrics of the all-reduce probe, folded from its results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from gpumon.probe.probes import ALL_REDUCE
from gpumon.probe.result import OUTCOMES, SKIP_REASONS, SUCCESSES, AllReduce, Comparison, Measurement, ProbeResult
from gpumon.probe.standing import checked
from gpumon.snapshot.reading import KEY_SEPARATOR

INITIAL = AllReduce(runs_total=dict.fromkeys(OUTCOMES, 0.0), skips_total=dict.fromkeys(SKIP_REASONS, 0.0), running=0.0)
"""Before any run: every counter exists, so that its first increase shows."""


def fold_result(metrics: AllReduce, result: ProbeResult, ran: Sequence[ProbeResult] = ()) -> AllReduce:
    """A run has ended, or was skipped. Bandwidths stay those of the last success; another probe's run is in none.

    `ran`: the runs before it that were not skipped, the newest last.
    """
    if result.probe != ALL_REDUCE:
        return metrics
    metrics = replace(metrics, runs_total=_counted(metrics.runs_total, result.outcome))
    if result.outcome == "skipped":
        return replace(metrics, skips_total=_counted(metrics.skips_total, result.reason))
    ended = result.started + result.duration_seconds
    metrics = replace(
        metrics,
        ranks={result.backend: float(result.ranks)},
        last_run_timestamp_seconds=ended,
        duration_seconds=result.duration_seconds,
    )
    told = checked((*ran, result), ALL_REDUCE)
    if told is not None and told.wrong_elements is not None:
        metrics = replace(metrics, wrong_elements={told.backend: float(told.wrong_elements)})
    return _succeeded(metrics, result, ended) if result.outcome in SUCCESSES else metrics


def _succeeded(metrics: AllReduce, result: ProbeResult, ended: float) -> AllReduce:
    metrics = replace(metrics, last_success_timestamp_seconds=ended)
    if not result.is_whole:  # fewer GPUs come to another bandwidth
        return metrics
    return replace(
        metrics,
        busbw_bytes_per_second=_latest(metrics.busbw_bytes_per_second, result, _busbw),
        algbw_bytes_per_second=_latest(metrics.algbw_bytes_per_second, result, _algbw),
        latency_seconds=_latest(metrics.latency_seconds, result, _latency),
        baseline_ratio=_ratios(metrics.baseline_ratio, result, lambda one: one.baseline),
        expected_ratio=_ratios(metrics.expected_ratio, result, lambda one: one.expected),
    )


def _busbw(one: Measurement) -> Mapping[str, float]:
    return {str(one.bytes): one.busbw_bytes_per_second}


def _algbw(one: Measurement) -> Mapping[str, float]:
    return {str(one.bytes): one.algbw_bytes_per_second}


def _latency(one: Measurement) -> Mapping[str, float]:
    return {KEY_SEPARATOR.join((str(one.bytes), name)): seconds for name, seconds in one.latency_seconds.items()}


def _latest(
    before: Mapping[str, float] | None, result: ProbeResult, values: Callable[[Measurement], Mapping[str, float]]
) -> dict[str, float]:
    """This run's values beside those of the same backend's algorithms that it did not measure."""
    measured = [one for one in result.measurements if one.dtype == "float32"]
    now = {
        KEY_SEPARATOR.join((result.backend, one.algorithm, key)): value
        for one in measured
        for key, value in values(one).items()
    }
    return _others(before, result.backend, {one.algorithm for one in measured}) | now


def _ratios(
    before: Mapping[str, float] | None, result: ProbeResult, usual: Callable[[Comparison], float | None]
) -> dict[str, float]:
    """At the largest size of each algorithm; nothing where nothing is known to compare with."""
    compared = [one for one in result.comparisons if one.dtype == "float32"]
    largest = {one.algorithm: one for one in sorted(compared, key=lambda one: one.bytes)}
    known = {name: (one.busbw, usual(one)) for name, one in largest.items()}
    now = {
        KEY_SEPARATOR.join((result.backend, name)): busbw / usually
        for name, (busbw, usually) in known.items()
        if usually
    }
    return _others(before, result.backend, largest) | now


def _others(before: Mapping[str, float] | None, backend: str, algorithms: Collection[str]) -> dict[str, float]:
    kept = {}
    for key, value in (before or {}).items():
        there, algorithm, *_ = key.split(KEY_SEPARATOR)
        if there == backend and algorithm not in algorithms:
            kept[key] = value
    return kept


def _counted(counts: Mapping[str, float] | None, key: str) -> dict[str, float]:
    counts = counts or {}
    return {**counts, key: counts.get(key, 0.0) + 1}
