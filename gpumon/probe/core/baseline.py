"""Compare a measurement with this host's earlier runs and with published figures. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpumon.model.durations import utc
from gpumon.probe.core.probes import ALGORITHMS
from gpumon.probe.core.result import Comparison, Conditions, Measurement, ProbeResult
from gpumon.probe.core.wording import index_ranges

ENOUGH_RUNS = 5
"""Number of earlier runs that a median needs."""
MAX_RUNS = 30
"""Max number of earlier runs in a median. It is limited so that the median follows changes of the host."""
MAX_GOOD = 200
"""Max number of good runs in memory, for all probes and conditions together."""
SATURATING = 16
"""A size is compared if it is larger than the largest size divided by this. Smaller sizes measure latency, not
bandwidth.
"""
_MAD_TO_SIGMA = 1.4826
_TELLING = "NCCL_DEBUG"
"""Prefix of NCCL variables that change only what NCCL logs."""
ALL = "all"
"""Value of the condition "on" if all GPUs of the host took part."""
_VERSIONS = {"NCCL": "nccl", "CUDA": "cuda", "torch": "torch"}


SourcedFigure = tuple[float, str]
"""A bandwidth in bytes a second, and where it was published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Floors:
    """Limits below which a measurement is low. A share of 0 disables that comparison."""

    baseline: float = 0.9
    spreads: float = 4.0
    """A measurement must also be this many spreads below the baseline, because hosts vary differently."""
    expected: float = 0.85


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Reference figures for a run under some conditions. It compares measurements with them."""

    probe: str
    backend: str
    conditions: Conditions = Conditions()
    settings: Mapping[str, str] = field(default_factory=dict)
    """NCCL settings chosen for this host, from `own_settings`."""
    history: Sequence[ProbeResult] = ()
    """Earlier ok runs, newest last."""
    expected: Callable[[Measurement], SourcedFigure | None] = field(default=lambda _: None)
    gain: Callable[[int], float | None] = field(default=lambda _: None)
    """Returns for a size in bytes the min ratio of default to ring bandwidth; None if it is not published."""
    floors: Floors = Floors()

    def compare(self, measurement: Measurement, *, ranks: int, versions: Mapping[str, str]) -> Comparison:
        """Return the comparison of one measurement with its references.

        The caller passes only sizes of `saturating`.
        """
        alike = list(self._comparable_runs(ranks, versions))
        earlier = [each for run in alike for each in run.measurements if each.key == measurement.key][-MAX_RUNS:]
        past = [each.busbw_bytes_per_second for each in earlier]
        median = statistics.median(past) if len(past) >= ENOUGH_RUNS else None
        distances = [] if median is None else [abs(busbw - median) for busbw in past]
        spread = _MAD_TO_SIGMA * statistics.median(distances) if distances else None
        best, date = _best(alike, measurement, median if len(past) == MAX_RUNS else None)
        figure, source = self.expected(measurement) or (None, "")
        comparison = Comparison(
            collective=measurement.collective,
            algorithm=measurement.algorithm,
            dtype=measurement.dtype,
            bytes=measurement.bytes,
            busbw=measurement.busbw_bytes_per_second,
            baseline=median,
            spread=spread,
            runs=len(past),
            best=best,
            best_date=date,
            runs_needed=ENOUGH_RUNS,
            expected=figure,
            source=source,
        )
        return replace(comparison, low=_low_figure(comparison, self.floors))

    def changed_conditions(self, ranks: int, versions: Mapping[str, str]) -> str:
        """Return how the conditions differ from those of the last good run; empty if they do not.

        This explains a missing median. A run on all GPUs is not compared with a partial run.
        """
        now = self._key(ranks, versions)
        own = [run for run in self.history if (run.probe, run.backend) == (self.probe, self.backend)]
        whole = now["on"] == ALL
        other = next((run for run in reversed(own) if _key(run) != now and (run.is_whole or not whole)), None)
        if other is None:
            return ""
        then = _key(other)
        changed = [name for name in {**then, **now} if then.get(name) != now.get(name)]
        now, then = _with_indexes(now, self.conditions), _with_indexes(then, other.conditions)
        return ", ".join(_change(name, then.get(name), now.get(name)) for name in changed)

    def _comparable_runs(self, ranks: int, versions: Mapping[str, str]) -> Iterator[ProbeResult]:
        """Yield the earlier good runs of this probe under the same conditions."""
        here = self._key(ranks, versions)
        for result in self.history:
            if (result.probe, result.backend) == (self.probe, self.backend) and _key(result) == here:
                yield result

    def _key(self, ranks: int, versions: Mapping[str, str]) -> Mapping[str, object]:
        return _conditions(self.conditions, ranks, versions, self.settings)


def _best(alike: Sequence[ProbeResult], measurement: Measurement, median: float | None) -> tuple[float | None, str]:
    """Return the highest median so far and its date; (None, "") without one. Each run stores it for the next.

    `median`: median of a full window that ends with the newest run; None if the window is not full.
    """
    medians = [
        (comparison.best, comparison.best_date)
        for run in alike
        for comparison in run.comparisons
        if comparison.key == measurement.key
    ]
    if median is not None:
        medians.append((median, utc(alike[-1].started).strftime("%Y-%m-%d")))
    return max(((best, date) for best, date in medians if best is not None), default=(None, ""))


def good_runs(runs: tuple[ProbeResult, ...], result: ProbeResult) -> tuple[ProbeResult, ...]:
    """Return the runs for baselines, with this result added if it is ok: a lasting fault must not become normal."""
    if result.outcome != "ok":
        return runs
    key = (result.probe, result.backend, _key(result))
    alike = [run.id for run in runs if (run.probe, run.backend, _key(run)) == key]
    crowded = set(alike[: max(0, len(alike) + 1 - MAX_RUNS)])
    return (*(run for run in runs if run.id not in crowded), result)[-MAX_GOOD:]


def _key(result: ProbeResult) -> Mapping[str, object]:
    """Return the conditions of an earlier run, with NCCL settings as in its first pass, for comparison by equality."""
    settings = own_settings(result.settings, next((measurement.algorithm for measurement in result.measurements), ""))
    return _conditions(result.conditions, result.ranks, result.versions, settings)


def own_settings(settings: Mapping[str, str], algorithm: str) -> Mapping[str, str]:
    """Return the NCCL settings chosen for this host, without those of the algorithm and those of NCCL's log."""
    own = ALGORITHMS.get(algorithm, {})
    return {name: value for name, value in settings.items() if name not in own and not name.startswith(_TELLING)}


def _with_indexes(key: Mapping[str, object], here: Conditions) -> Mapping[str, object]:
    """Return the conditions of a partial run with GPU indexes in place of UUIDs, if its indexes were recorded."""
    return {**key, "on": f"GPUs {index_ranges(here.indexes)}"} if here.indexes and key["on"] != ALL else key


def _change(name: str, then: object, now: object) -> str:
    if name.startswith("/"):  # the lines are in the results
        return f"{name} has changed"
    if name == "accepted":
        return f"an operator accepted the bandwidth at {now}"
    nothing = "none" if name.startswith("NCCL_") else "unknown"
    return f"{name} {now or nothing} after {then or nothing}"


def _conditions(
    here: Conditions, ranks: int, versions: Mapping[str, str], settings: Mapping[str, str]
) -> Mapping[str, object]:
    """Return the conditions, by name, that must be equal for two runs to be compared; NCCL's settings only on GPUs."""
    partial = here.gpus and ranks != here.host_gpus
    return {
        "GPU": here.model,
        "GPUs": here.host_gpus,
        "ranks": ranks,
        "on": ", ".join(sorted(here.gpus)) if partial else ALL,
        "driver": here.driver,
        "accepted": here.accepted,
        **{name: versions.get(key) for name, key in _VERSIONS.items()},
        **(settings if here.gpus else {}),
    }


def saturating(measurements: Sequence[Measurement]) -> tuple[Measurement, ...]:
    """Return the measurements whose size is large enough to saturate the links (see SATURATING)."""
    largest = max((measurement.bytes for measurement in measurements), default=0)
    return tuple(measurement for measurement in measurements if measurement.bytes * SATURATING > largest)


def _low_figure(comparison: Comparison, floors: Floors) -> str:
    """Return the reference that the measurement is below: baseline, drift or expected; empty if it is not low."""
    own = {"baseline": comparison.baseline, "drift": comparison.best}
    for name, usual in own.items():
        if usual is None or comparison.spread is None:
            continue
        if comparison.busbw < min(floors.baseline * usual, usual - floors.spreads * comparison.spread):
            return name
    if comparison.expected is not None and comparison.busbw < floors.expected * comparison.expected:
        return "expected"
    return ""
