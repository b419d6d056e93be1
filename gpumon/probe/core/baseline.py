"""Compares a measurement with this host's earlier runs and with published figures. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from gpumon.model.durations import utc
from gpumon.probe.core.probes import ALGORITHMS
from gpumon.probe.core.result import Comparison, Conditions, Measured, Measurement, ProbeResult
from gpumon.probe.core.wording import index_ranges

ENOUGH_RUNS = 5
"""Min number of earlier runs under the same conditions from which a median is computed."""
MAX_RUNS = 30
"""Max number of earlier runs in a median. It is limited so that the median follows changes of the host."""
MAX_GOOD = 200
"""Max number of runs with the outcome ok that are kept in memory for baselines, for all probes and conditions together.
"""
SATURATING = 16
"""Only sizes above the largest divided by this number are compared; smaller ones measure latency, not bandwidth."""
_MAD_TO_SIGMA = 1.4826
_TELLING = "NCCL_DEBUG"
"""Prefix of the NCCL environment variables that affect only what NCCL logs."""
ALL = "all"
"""Value of the condition "on", which names the GPUs of a run, for a run on all GPUs of the host or on the CPU."""
_VERSIONS = {"NCCL": "nccl", "CUDA": "cuda", "torch": "torch"}


SourcedFigure = tuple[float, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Floors:
    """Limits from which a value is worse than the reference values, as shares of these. 0 disables a comparison.

    `baseline` applies to the median of earlier runs and to the best such median. Where lower is better, a share is
    inverted.
    """

    baseline: float = 0.9
    spreads: float = 4.0
    """A low value must also be this many spreads from the median: results vary more on some hosts than on others."""
    expected: float = 0.85
    limit: float | None = None
    """Configured minimum of the best all-reduce bandwidth of each algorithm, in bytes per second; None if not set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Reference values for one run, and the limits from which its measurements are worse."""

    probe: str
    higher_is_better: bool = True
    backend: str
    conditions: Conditions = Conditions()
    settings: Mapping[str, str] = field(default_factory=dict)
    """NCCL settings that comparable runs must share, from `own_settings`."""
    history: Sequence[ProbeResult] = ()
    """Earlier runs with the outcome ok, of all probes and conditions, newest last."""
    expected: Callable[[Measurement], SourcedFigure | None] = field(default=lambda _: None)
    gain: Callable[[int], float | None] = field(default=lambda _: None)
    """Function that returns the published gain of default over ring at a size in bytes; None if unknown."""
    floors: Floors = Floors()

    def compare(self, measurement: Measurement, *, ranks: int, versions: Mapping[str, str]) -> Comparison:
        """Return the comparison of a measurement of `saturating_measurements` with its reference values."""
        own = (self.probe, self.backend, self._key(ranks, versions))
        alike = [run for run in self.history if (run.probe, run.backend, _key(run)) == own]
        earlier = [each for run in alike for each in run.measurements if each.key == measurement.key][-MAX_RUNS:]
        past = [each.value for each in earlier]
        median = statistics.median(past) if len(past) >= ENOUGH_RUNS else None
        distances = [] if median is None else [abs(value - median) for value in past]
        spread = _MAD_TO_SIGMA * statistics.median(distances) if distances else None
        best, date = self._best_median(alike, measurement, median if len(past) == MAX_RUNS else None)
        figure, source = self.expected(measurement) or (None, "")
        comparison = Comparison(
            **{each.name: getattr(measurement, each.name) for each in fields(Measured)},
            baseline=median,
            spread=spread,
            runs=len(past),
            best=best,
            best_date=date,
            runs_needed=ENOUGH_RUNS,
            expected=figure,
            source=source,
        )
        return replace(comparison, below_reference=self._missed_reference(comparison))

    def changed_conditions(self, ranks: int, versions: Mapping[str, str]) -> str:
        """Return a phrase on the conditions that have changed since the newest ok run with others; "" if there is none.

        For a run on all GPUs, partial runs are ignored.
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

    def _key(self, ranks: int, versions: Mapping[str, str]) -> Mapping[str, object]:
        return _conditions(self.conditions, ranks, versions, self.settings)

    def _best_median(
        self, alike: Sequence[ProbeResult], measurement: Measurement, median: float | None
    ) -> tuple[float | None, str]:
        """Return the best median of a measurement, as the earlier comparable runs stored it, and its UTC date.

        `median`: median of the newest MAX_RUNS runs; None if there are fewer runs.
        """
        medians = [
            (comparison.best, comparison.best_date)
            for run in alike
            for comparison in run.comparisons
            if comparison.key == measurement.key and comparison.best is not None
        ]
        if median is not None:
            medians.append((median, utc(alike[-1].started).strftime("%Y-%m-%d")))
        pick = max if self.higher_is_better else min
        return pick(medians, key=lambda dated: dated[0], default=(None, ""))

    def _missed_reference(self, comparison: Comparison) -> str:
        for name, usual in (("baseline", comparison.baseline), ("drift", comparison.best)):
            if usual is not None and comparison.spread is not None:
                distance = self.floors.spreads * comparison.spread
                if self._is_worse(comparison.value, usual, self.floors.baseline, distance):
                    return name
        expected = comparison.expected
        worse = expected is not None and self._is_worse(comparison.value, expected, self.floors.expected)
        return "expected" if worse else ""

    def _is_worse(self, value: float, usual: float, ratio: float, distance: float = 0.0) -> bool:
        """Return whether a value is worse than the usual one by more than this ratio and by more than this distance."""
        if self.higher_is_better:
            return value < ratio * usual and value < usual - distance
        return value * ratio > usual and value > usual + distance


def good_runs(runs: tuple[ProbeResult, ...], result: ProbeResult) -> tuple[ProbeResult, ...]:
    """Return the runs of baselines with `result` added if it is ok: a lasting fault must not become the baseline.

    The oldest runs beyond MAX_RUNS under the same conditions, and beyond MAX_GOOD in all, are dropped.
    """
    if result.outcome != "ok":
        return runs
    key = (result.probe, result.backend, _key(result))
    alike = [run.id for run in runs if (run.probe, run.backend, _key(run)) == key]
    crowded = set(alike[: max(0, len(alike) + 1 - MAX_RUNS)])
    return (*(run for run in runs if run.id not in crowded), result)[-MAX_GOOD:]


def _key(result: ProbeResult) -> Mapping[str, object]:
    settings = own_settings(result.settings, next((measurement.algorithm for measurement in result.measurements), ""))
    return _conditions(result.conditions, result.ranks, result.versions, settings)


def own_settings(settings: Mapping[str, str], algorithm: str) -> Mapping[str, str]:
    """Return the NCCL settings except the variables that `algorithm` sets and those that affect only NCCL's log."""
    own = ALGORITHMS.get(algorithm, {})
    return {name: value for name, value in settings.items() if name not in own and not name.startswith(_TELLING)}


def _with_indexes(key: Mapping[str, object], here: Conditions) -> Mapping[str, object]:
    """Name the GPUs of a partial run by index instead of by UUID, for a message."""
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
    """Return the conditions that comparable runs share, by name. NCCL settings count only on GPUs."""
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


def saturating_measurements(measurements: Sequence[Measurement]) -> tuple[Measurement, ...]:
    """Return the measurements whose size is large enough to measure bandwidth (see SATURATING)."""
    largest = max((measurement.size for measurement in measurements), default=0)
    return tuple(measurement for measurement in measurements if measurement.size * SATURATING > largest)
