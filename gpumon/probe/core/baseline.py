"""Is a measurement what was to be expected, by this host's own past and by figures from elsewhere? Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpumon.model.durations import utc
from gpumon.probe.core.probes import ALGORITHMS
from gpumon.probe.core.result import Comparison, Conditions, Measurement, ProbeResult
from gpumon.probe.core.wording import numbered

ENOUGH_RUNS = 5
"""Fewer say nothing about what is normal."""
MOST_RUNS = 30
"""Of which the median is taken: what the host comes to now is not hidden by runs of last year."""
MOST_GOOD = 200
"""Good runs that are remembered, under whatever conditions."""
SATURATING = 16
"""Sizes from this part of the largest show bandwidth; smaller ones show latency."""
_MAD_TO_SIGMA = 1.4826
_TELLING = "NCCL_DEBUG"
"""Begins the names of variables that change what NCCL says, not what it does."""
ALL = "all"
"""GPUs of the host."""
_VERSIONS = {"NCCL": "nccl", "CUDA": "cuda", "torch": "torch"}


Figure = tuple[float, str]
"""Bytes a second, and where the figure is from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Floors:
    """Below these shares of what was to be expected a measurement is low; 0: never."""

    baseline: float = 0.9
    spreads: float = 4.0
    """And below the baseline by so many spreads: hosts differ in how steady they are."""
    expected: float = 0.85


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Knows what is normal for runs under some conditions."""

    probe: str
    backend: str
    conditions: Conditions = Conditions()
    settings: Mapping[str, str] = field(default_factory=dict)
    """What NCCL is told, as `chosen` has it."""
    history: Sequence[ProbeResult] = ()
    """Earlier runs that were good, the newest last."""
    expected: Callable[[Measurement], Figure | None] = field(default=lambda _: None)
    gain: Callable[[int], float | None] = field(default=lambda _: None)
    """How many times the ring's bandwidth the default should reach at least, by size."""
    floors: Floors = Floors()

    def compare(self, measurement: Measurement, *, ranks: int, versions: Mapping[str, str]) -> Comparison:
        """Only what saturates the links can be low: see `saturating`."""
        alike = list(self._alike(ranks, versions))
        past = [one.busbw_bytes_per_second for run in alike for one in run.measurements if one.key == measurement.key]
        past = past[-MOST_RUNS:]
        median = statistics.median(past) if len(past) >= ENOUGH_RUNS else None
        spread = None if median is None else _MAD_TO_SIGMA * statistics.median(abs(one - median) for one in past)
        best, date = _best(alike, measurement, median if len(past) == MOST_RUNS else None)
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
        return replace(comparison, low=_low(comparison, self.floors))

    def news(self, ranks: int, versions: Mapping[str, str]) -> str:
        """What is not as it was in the last good run that was otherwise: why there is no median any more.

        Beside a run on all GPUs, one that left some out is no news.
        """
        now = self._key(ranks, versions)
        known = [one for one in self.history if (one.probe, one.backend) == (self.probe, self.backend)]
        whole = now["on"] == ALL
        other = next((one for one in reversed(known) if _key(one) != now and (one.is_whole or not whole)), None)
        if other is None:
            return ""
        then = _key(other)
        changed = [name for name in {**then, **now} if then.get(name) != now.get(name)]
        now, then = _numbered(now, self.conditions), _numbered(then, other.conditions)
        return ", ".join(_change(name, then.get(name), now.get(name)) for name in changed)

    def _alike(self, ranks: int, versions: Mapping[str, str]) -> Iterator[ProbeResult]:
        """Good runs under these conditions."""
        here = self._key(ranks, versions)
        for result in self.history:
            if (result.probe, result.backend) == (self.probe, self.backend) and _key(result) == here:
                yield result

    def _key(self, ranks: int, versions: Mapping[str, str]) -> Mapping[str, object]:
        return _conditions(self.conditions, ranks, versions, self.settings)


def _best(alike: Sequence[ProbeResult], measurement: Measurement, median: float | None) -> tuple[float | None, str]:
    """The highest median that there has been, as each run hands it on to the next; `median`: of a full window."""
    known = [(one.best, one.best_date) for run in alike for one in run.comparisons if one.key == measurement.key]
    if median is not None:
        known.append((median, utc(alike[-1].started).strftime("%Y-%m-%d")))
    return max(((best, date) for best, date in known if best is not None), default=(None, ""))


def good_runs(known: tuple[ProbeResult, ...], result: ProbeResult) -> tuple[ProbeResult, ...]:
    """The runs that tell what is normal, with this one if it does: a fault that lasts must not become normal."""
    if result.outcome != "ok":
        return known
    key = (result.probe, result.backend, _key(result))
    alike = [one.id for one in known if (one.probe, one.backend, _key(one)) == key]
    crowded = set(alike[: max(0, len(alike) + 1 - MOST_RUNS)])
    return (*(one for one in known if one.id not in crowded), result)[-MOST_GOOD:]


def _key(result: ProbeResult) -> Mapping[str, object]:
    """Its settings are those of its first algorithm."""
    settings = chosen(result.settings, next((one.algorithm for one in result.measurements), ""))
    return _conditions(result.conditions, result.ranks, result.versions, settings)


def chosen(settings: Mapping[str, str], algorithm: str) -> Mapping[str, str]:
    """What was chosen for this host, of all that NCCL was told: neither by the algorithm, nor for its log alone."""
    own = ALGORITHMS.get(algorithm, {})
    return {name: value for name, value in settings.items() if name not in own and not name.startswith(_TELLING)}


def _numbered(key: Mapping[str, object], here: Conditions) -> Mapping[str, object]:
    """With numbers for UUIDs, as far as they are known."""
    return {**key, "on": f"GPUs {numbered(here.indexes)}"} if here.indexes and key["on"] != ALL else key


def _change(name: str, then: object, now: object) -> str:
    if name.startswith("/"):  # its lines, which are in the results
        return f"{name} is not as it was"
    if name == "accepted":
        return f"what it came to was acknowledged at {now}"
    nothing = "none" if name.startswith("NCCL_") else "unknown"
    return f"{name} {now or nothing} after {then or nothing}"


def _conditions(
    here: Conditions, ranks: int, versions: Mapping[str, str], settings: Mapping[str, str]
) -> Mapping[str, object]:
    """Only runs in which all of this is the same are compared. On the CPU nobody asks NCCL."""
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
    """Those whose size shows what the links carry."""
    largest = max((one.bytes for one in measurements), default=0)
    return tuple(one for one in measurements if one.bytes * SATURATING > largest)


def _low(one: Comparison, floors: Floors) -> str:
    """Which of them it falls short of."""
    own = {"baseline": one.baseline, "drift": one.best}
    for name, usual in own.items():
        if usual is None or one.spread is None:
            continue
        if one.busbw < min(floors.baseline * usual, usual - floors.spreads * one.spread):
            return name
    if one.expected is not None and one.busbw < floors.expected * one.expected:
        return "expected"
    return ""
