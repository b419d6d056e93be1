"""Defines the metrics of the all-reduce probe, and updates them with probe results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from gpumon.model.reading import KEY_SEPARATOR, agent
from gpumon.probe.core.current_result import checked_result
from gpumon.probe.core.probes import ALL_REDUCE
from gpumon.probe.core.result import OUTCOMES, SKIP_REASONS, SUCCESSES, Comparison, Measurement, ProbeResult


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduce:
    """Metrics of the all-reduce probe. The name of a metric is PREFIX followed by the name of the attribute."""

    PREFIX: ClassVar[str] = "gpumon_probe_allreduce_"
    LABELS: ClassVar[tuple[str, ...]] = ()

    busbw_bytes_per_second: dict[str, float] | None = agent(
        "Bus bandwidth of the last successful run on all GPUs.", label=("backend", "algorithm", "bytes")
    )
    algbw_bytes_per_second: dict[str, float] | None = agent(
        "Algorithm bandwidth of the last successful run on all GPUs.", label=("backend", "algorithm", "bytes")
    )
    latency_seconds: dict[str, float] | None = agent(
        "Time of one operation.", label=("backend", "algorithm", "bytes", "percentile")
    )
    baseline_ratio: dict[str, float] | None = agent(
        "Bus bandwidth of the last run over the median of this host's own runs, at the largest size; may exceed 1.",
        label=("backend", "algorithm"),
    )
    expected_ratio: dict[str, float] | None = agent(
        "Bus bandwidth of the last run over the published figure for this hardware, at the largest size; may exceed 1.",
        label=("backend", "algorithm"),
    )
    wrong_elements: dict[str, float] | None = agent(
        "Elements with a wrong value, from the last run that checked data; an earlier run counts if its GPUs have not "
        "been tested since.",
        label="backend",
    )
    ranks: dict[str, float] | None = agent("Ranks of the last run on all GPUs that started any.", label="backend")
    runs_total: dict[str, float] | None = agent("Runs by outcome, counted across restarts.", label="outcome")
    skips_total: dict[str, float] | None = agent("Skipped runs by reason, counted across restarts.", label="reason")
    last_run_timestamp_seconds: float | None = agent(
        "When the last run ended, whatever its outcome; skips do not count."
    )
    last_success_timestamp_seconds: float | None = agent(
        "When the last successful run ended, on all or some of the GPUs."
    )
    duration_seconds: float | None = agent("Duration of the last run; skips do not count.")
    running: float | None = agent("1 while a run of any probe is in progress: it loads the GPUs.")


INITIAL = AllReduce(runs_total=dict.fromkeys(OUTCOMES, 0.0), skips_total=dict.fromkeys(SKIP_REASONS, 0.0), running=0.0)
"""Metrics before the first run. Every counter starts at 0, so that rate() and increase() include the first run."""


def fold_result(metrics: AllReduce, result: ProbeResult, ran: Sequence[ProbeResult] = ()) -> AllReduce:
    """Return the metrics after a run of the all-reduce; unchanged after a run of another probe.

    `ran`: earlier runs that were not skipped, newest last. Bandwidths are those of the last successful run on all GPUs.
    """
    if result.probe != ALL_REDUCE:
        return metrics
    metrics = replace(metrics, runs_total=_increment(metrics.runs_total, result.outcome))
    if result.outcome == "skipped":
        return replace(metrics, skips_total=_increment(metrics.skips_total, result.reason))
    metrics = replace(
        metrics,
        ranks={result.backend: float(result.ranks)} if result.is_whole else metrics.ranks,
        last_run_timestamp_seconds=result.ended,
        duration_seconds=result.duration_seconds,
    )
    checked = checked_result((*ran, result), ALL_REDUCE)
    if checked is not None and checked.wrong_elements is not None:
        metrics = replace(metrics, wrong_elements={checked.backend: float(checked.wrong_elements)})
    return _fold_success(metrics, result) if result.outcome in SUCCESSES else metrics


def _fold_success(metrics: AllReduce, result: ProbeResult) -> AllReduce:
    metrics = replace(metrics, last_success_timestamp_seconds=result.ended)
    if not result.is_whole:  # fewer GPUs have another bandwidth
        return metrics
    return replace(
        metrics,
        busbw_bytes_per_second=_latest(result, lambda each: {str(each.size): each.value}),
        algbw_bytes_per_second=_latest(result, lambda each: {str(each.size): each.raw_value or 0.0}),
        latency_seconds=_latest(result, _latency),
        baseline_ratio=_ratios(result, lambda comparison: comparison.baseline),
        expected_ratio=_ratios(result, lambda comparison: comparison.expected),
    )


def _latency(measurement: Measurement) -> Mapping[str, float]:
    size = str(measurement.size)
    return {KEY_SEPARATOR.join((size, name)): seconds for name, seconds in measurement.latency_seconds.items()}


def _latest(result: ProbeResult, values: Callable[[Measurement], Mapping[str, float]]) -> dict[str, float]:
    """Return the `values` of each float32 measurement of a run, by backend, algorithm and the key in `values`.

    An algorithm that is no longer measured loses its series.
    """
    return {
        KEY_SEPARATOR.join((result.backend, measurement.algorithm, key)): value
        for measurement in result.measurements
        if measurement.dtype == "float32"
        for key, value in values(measurement).items()
    }


def _ratios(result: ProbeResult, usual: Callable[[Comparison], float | None]) -> dict[str, float]:
    """Return the bandwidth divided by its reference at the largest size of each algorithm, by backend and algorithm.

    `usual` returns the reference of a comparison, or None. An algorithm without a reference is left out.
    """
    compared = [comparison for comparison in result.comparisons if comparison.dtype == "float32"]
    largest = {
        comparison.algorithm: comparison for comparison in sorted(compared, key=lambda comparison: comparison.size)
    }
    figures = {name: (comparison.value, usual(comparison)) for name, comparison in largest.items()}
    return {
        KEY_SEPARATOR.join((result.backend, name)): busbw / usually
        for name, (busbw, usually) in figures.items()
        if usually
    }


def _increment(counts: Mapping[str, float] | None, key: str) -> dict[str, float]:
    counts = counts or {}
    return {**counts, key: counts.get(key, 0.0) + 1}
