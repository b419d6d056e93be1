"""Defines the metrics of each probe, and updates them with probe results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, make_dataclass, replace
from typing import Any, ClassVar, cast

from gpumon.model.reading import KEY_SEPARATOR, agent
from gpumon.probe.core.probes import ALL_REDUCE, PROBES, SCHEDULED, Probe
from gpumon.probe.core.result import (
    OUTCOMES,
    SKIP_REASONS,
    SUCCESSES,
    Comparison,
    Measurement,
    ProbeResult,
    checked_result,
)

_TITLES = {"busbw": "Bus bandwidth", "algbw": "Algorithm bandwidth", "flops": "Floating-point operations per second"}
_LAST = "of the last successful run on all GPUs"


class ProbeMetrics:
    """Metrics of one probe: a frozen dataclass of METRICS. The name of a metric is PREFIX and the attribute.

    The measured value is in the attribute `PROBE.metric`, such as `busbw_bytes_per_second`.
    """

    PREFIX: ClassVar[str]
    LABELS: ClassVar[tuple[str, ...]] = ()
    PROBE: ClassVar[Probe]
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    latency_seconds: dict[str, float] | None
    baseline_ratio: dict[str, float] | None
    expected_ratio: dict[str, float] | None
    wrong_elements: dict[str, float] | None
    ranks: dict[str, float] | None
    runs_total: dict[str, float] | None
    skips_total: dict[str, float] | None
    last_run_timestamp_seconds: float | None
    last_success_timestamp_seconds: float | None
    duration_seconds: float | None
    running: float | None

    @property
    def value(self) -> dict[str, float] | None:
        """Return the measured values by backend, `_labels` and size."""
        return cast("dict[str, float] | None", getattr(self, self.PROBE.metric))


def _rows(probe: Probe) -> Iterator[tuple[str, Any]]:
    """Yield the name and the field of each metric of a probe."""
    way = ("backend", *_labels(probe))
    sized, title = (*way, probe.size_unit), _TITLES.get(probe.quantity, probe.quantity.capitalize())
    yield probe.metric, agent(f"{title} {_LAST}.", label=sized)
    if probe.raw_value is not None:
        raw = _TITLES.get(probe.raw_quantity, probe.raw_quantity.capitalize())
        yield probe.raw_metric, agent(f"{raw} {_LAST}.", label=sized)
    yield "latency_seconds", agent("Time of one operation.", label=(*sized, "percentile"))
    for name, reference in (
        ("baseline_ratio", "the median of this host's own runs"),
        ("expected_ratio", "the published figure for this hardware"),
    ):
        text = f"{title} of the last run over {reference}, at the largest size; may exceed 1."
        yield name, agent(text, label=way)
    yield (
        "wrong_elements",
        agent(
            "Elements with a wrong value, from the last run that checked data; an earlier run counts if its GPUs have "
            "not been tested since.",
            label="backend",
        ),
    )
    yield "ranks", agent("Ranks of the last run on all GPUs that started any.", label="backend")
    yield "runs_total", agent("Runs by outcome, counted across restarts.", label="outcome")
    yield "skips_total", agent("Skipped runs by reason, counted across restarts.", label="reason")
    text = "When the last run ended, whatever its outcome; skips do not count."
    yield "last_run_timestamp_seconds", agent(text)
    text = "When the last successful run ended, on all or some of the GPUs."
    yield "last_success_timestamp_seconds", agent(text)
    yield "duration_seconds", agent("Duration of the last run; skips do not count.")
    if probe.name == ALL_REDUCE:
        yield "running", agent("1 while a run of any probe is in progress: it loads the GPUs.")


def _labels(probe: Probe) -> tuple[str, ...]:
    """Return the labels by which the measurements of a probe differ, beside backend and size."""
    several = {"operation": probe.operations, "precision": probe.dtypes}
    return (*(label for label, values in several.items() if len(values) > 1), "algorithm")


def metric_table(probe: Probe) -> type[ProbeMetrics]:
    """Return the metric table of a probe."""
    table = make_dataclass(
        f"{probe.name.capitalize()}Metrics",
        [(name, "dict[str, float] | float | None", row) for name, row in _rows(probe)],
        bases=(ProbeMetrics,),
        namespace={
            "PREFIX": f"gpumon_probe_{probe.name}_",
            "PROBE": probe,
            "__doc__": f"Metrics of the probe {probe.name}.",
        },
        frozen=True,
        kw_only=True,
    )
    return cast("type[ProbeMetrics]", table)


METRICS: Mapping[str, type[ProbeMetrics]] = {name: metric_table(probe) for name, probe in PROBES.items()}
"""Metric table of each probe, by name of the probe."""


def with_counters(metrics: Mapping[str, ProbeMetrics], scheduled: Iterable[str]) -> Mapping[str, ProbeMetrics]:
    """Return the metrics with the counters of these probes: they start at 0, so that increase() includes the first run.

    `scheduled`: names of the probes.
    """
    counted = dict(metrics)
    for name in scheduled:
        table = metrics.get(name) or METRICS[name]()
        runs = {**dict.fromkeys(OUTCOMES, 0.0), **(table.runs_total or {})}
        skips = {**dict.fromkeys(SKIP_REASONS, 0.0), **(table.skips_total or {})}
        counted[name] = replace(table, runs_total=runs, skips_total=skips)
    return counted


INITIAL = with_counters({ALL_REDUCE: replace(METRICS[ALL_REDUCE](), running=0.0)}, [probe.name for probe in SCHEDULED])
"""Metrics before the first run, with the default schedules."""


def fold_result(
    metrics: Mapping[str, ProbeMetrics], result: ProbeResult, ran: Sequence[ProbeResult] = ()
) -> Mapping[str, ProbeMetrics]:
    """Return the metrics by probe after a run. Values are those of the last successful run on all GPUs.

    `ran`: earlier runs that were not skipped, newest last. A probe that no longer exists has no metrics.
    """
    table = METRICS.get(result.probe)
    if table is None:
        return metrics
    folded = metrics.get(result.probe) or table()
    folded = replace(folded, runs_total=_increment(folded.runs_total, result.outcome))
    if result.outcome == "skipped":
        skips = _increment(folded.skips_total, result.reason)
        return {**metrics, result.probe: replace(folded, skips_total=skips)}
    folded = replace(
        folded,
        ranks={result.backend: float(result.ranks)} if result.is_whole else folded.ranks,
        last_run_timestamp_seconds=result.ended,
        duration_seconds=result.duration_seconds,
    )
    checked = checked_result((*ran, result), result.probe)
    if checked is not None and checked.wrong_elements is not None:
        folded = replace(folded, wrong_elements={checked.backend: float(checked.wrong_elements)})
    return {**metrics, result.probe: _fold_success(folded, result) if result.outcome in SUCCESSES else folded}


def with_running(metrics: Mapping[str, ProbeMetrics], *, running: bool) -> Mapping[str, ProbeMetrics]:
    """Return the metrics after a run of any probe began or ended."""
    return {**metrics, ALL_REDUCE: replace(metrics.get(ALL_REDUCE) or METRICS[ALL_REDUCE](), running=float(running))}


def _fold_success(metrics: ProbeMetrics, result: ProbeResult) -> ProbeMetrics:
    metrics, probe = replace(metrics, last_success_timestamp_seconds=result.ended), metrics.PROBE
    if not result.is_whole:  # fewer GPUs have another value
        return metrics
    # An algorithm that is gone has no series.
    own = [each for each in result.measurements if each.dtype in probe.dtypes]
    values = {probe.metric: {_key(result, each, str(each.size)): each.value for each in own}}
    if probe.raw_value is not None:
        values[probe.raw_metric] = {
            _key(result, each, str(each.size)): each.raw_value for each in own if each.raw_value is not None
        }
    return replace(
        metrics,
        **values,
        latency_seconds={
            _key(result, each, str(each.size), name): seconds
            for each in own
            for name, seconds in each.latency_seconds.items()
        },
        baseline_ratio=_ratios(result, lambda comparison: comparison.baseline),
        expected_ratio=_ratios(result, lambda comparison: comparison.expected),
    )


def _key(result: ProbeResult, measured: Measurement | Comparison, *more: str) -> str:
    """Return the values of the labels of a series, joined: backend, those of `_labels`, and `more`."""
    values = {"operation": measured.operation, "precision": measured.dtype, "algorithm": measured.algorithm}
    own = (values[label] for label in _labels(PROBES[result.probe]))
    return KEY_SEPARATOR.join((result.backend, *own, *more))


def _ratios(result: ProbeResult, usual: Callable[[Comparison], float | None]) -> dict[str, float]:
    """Return value divided by reference (`usual`) at the largest size, by the labels of the series."""
    dtypes = PROBES[result.probe].dtypes
    compared = [comparison for comparison in result.comparisons if comparison.dtype in dtypes]
    largest = {_key(result, each): each for each in sorted(compared, key=lambda comparison: comparison.size)}
    return {key: each.value / reference for key, each in largest.items() if (reference := usual(each))}


def _increment(counts: Mapping[str, float] | None, key: str) -> dict[str, float]:
    counts = counts or {}
    return {**counts, key: counts.get(key, 0.0) + 1}
