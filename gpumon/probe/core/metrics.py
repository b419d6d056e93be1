"""The metrics of the all-reduce probe, folded from its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from gpumon.model.reading import KEY_SEPARATOR
from gpumon.probe.core.probes import ALL_REDUCE
from gpumon.probe.core.result import OUTCOMES, SKIP_REASONS, SUCCESSES, AllReduce, Comparison, Measurement, ProbeResult
from gpumon.probe.core.standing import checked

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
    metrics = replace(
        metrics,
        ranks={result.backend: float(result.ranks)} if result.is_whole else metrics.ranks,
        last_run_timestamp_seconds=result.ended,
        duration_seconds=result.duration_seconds,
    )
    told = checked((*ran, result), ALL_REDUCE)
    if told is not None and told.wrong_elements is not None:
        metrics = replace(metrics, wrong_elements={told.backend: float(told.wrong_elements)})
    return _succeeded(metrics, result) if result.outcome in SUCCESSES else metrics


def _succeeded(metrics: AllReduce, result: ProbeResult) -> AllReduce:
    metrics = replace(metrics, last_success_timestamp_seconds=result.ended)
    if not result.is_whole:  # fewer GPUs come to another bandwidth
        return metrics
    return replace(
        metrics,
        busbw_bytes_per_second=_latest(result, _busbw),
        algbw_bytes_per_second=_latest(result, _algbw),
        latency_seconds=_latest(result, _latency),
        baseline_ratio=_ratios(result, lambda one: one.baseline),
        expected_ratio=_ratios(result, lambda one: one.expected),
    )


def _busbw(one: Measurement) -> Mapping[str, float]:
    return {str(one.bytes): one.busbw_bytes_per_second}


def _algbw(one: Measurement) -> Mapping[str, float]:
    return {str(one.bytes): one.algbw_bytes_per_second}


def _latency(one: Measurement) -> Mapping[str, float]:
    return {KEY_SEPARATOR.join((str(one.bytes), name)): seconds for name, seconds in one.latency_seconds.items()}


def _latest(result: ProbeResult, values: Callable[[Measurement], Mapping[str, float]]) -> dict[str, float]:
    """Of this run alone: who no longer measures an algorithm must not be told of it for ever."""
    return {
        KEY_SEPARATOR.join((result.backend, one.algorithm, key)): value
        for one in result.measurements
        if one.dtype == "float32"
        for key, value in values(one).items()
    }


def _ratios(result: ProbeResult, usual: Callable[[Comparison], float | None]) -> dict[str, float]:
    """At the largest size of each algorithm; nothing where nothing is known to compare with."""
    compared = [one for one in result.comparisons if one.dtype == "float32"]
    largest = {one.algorithm: one for one in sorted(compared, key=lambda one: one.bytes)}
    known = {name: (one.busbw, usual(one)) for name, one in largest.items()}
    return {
        KEY_SEPARATOR.join((result.backend, name)): busbw / usually
        for name, (busbw, usually) in known.items()
        if usually
    }


def _counted(counts: Mapping[str, float] | None, key: str) -> dict[str, float]:
    counts = counts or {}
    return {**counts, key: counts.get(key, 0.0) + 1}
