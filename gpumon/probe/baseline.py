"""Is a measurement what was to be expected, by this host's own past and by figures from elsewhere? Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpumon.probe.result import Comparison, Conditions, Measurement, ProbeResult

ENOUGH_RUNS = 5
"""Fewer say nothing about what is normal."""
MOST_RUNS = 30
"""Of which the median is taken: drift over months is not hidden by runs of last year."""
SATURATING = 16
"""Sizes from this part of the largest show bandwidth; smaller ones show latency."""
_MAD_TO_SIGMA = 1.4826
_VERSIONS = ("torch", "nccl", "cuda")

Figure = tuple[float, str]
"""Bytes a second, and where the figure is from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Floors:
    """Below these shares of what was to be expected a measurement is low; 0: never."""

    baseline: float = 0.9
    spreads: float = 4.0
    """And below the baseline by so many spreads: hosts differ in how steady they are."""
    expected: float = 0.85
    fleet: float = 0.85


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Knows what is normal for runs under some conditions."""

    probe: str
    backend: str
    conditions: Conditions = Conditions()
    history: Sequence[ProbeResult] = ()
    """Earlier runs, the newest last."""
    expected: Callable[[Measurement], Figure | None] = field(default=lambda _: None)
    fleet: Callable[[Measurement], float | None] = field(default=lambda _: None)
    floors: Floors = Floors()

    def compare(self, measurement: Measurement, *, ranks: int, versions: Mapping[str, str]) -> Comparison:
        """Only what saturates the links can be low: see `saturating`."""
        past = list(self._past(measurement, ranks, versions))[-MOST_RUNS:]
        median = statistics.median(past) if len(past) >= ENOUGH_RUNS else None
        spread = None if median is None else _MAD_TO_SIGMA * statistics.median(abs(one - median) for one in past)
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
            runs_needed=ENOUGH_RUNS,
            expected=figure,
            source=source,
            fleet=self.fleet(measurement),
        )
        return replace(comparison, low=_low(comparison, self.floors))

    def _past(self, measurement: Measurement, ranks: int, versions: Mapping[str, str]) -> Iterator[float]:
        """Only good runs: a fault that lasts must not become what is normal."""
        for result in self.history:
            if result.outcome == "ok" and self._same(result, ranks, versions):
                yield from (one.busbw_bytes_per_second for one in result.measurements if one.key == measurement.key)

    def _same(self, result: ProbeResult, ranks: int, versions: Mapping[str, str]) -> bool:
        there, here = result.conditions, self.conditions
        return (
            (result.probe, result.backend, result.ranks) == (self.probe, self.backend, ranks)
            and (there.model, there.driver, there.host_gpus) == (here.model, here.driver, here.host_gpus)
            and all(result.versions.get(one) == versions.get(one) for one in _VERSIONS)
        )


def saturating(measurements: Sequence[Measurement]) -> tuple[Measurement, ...]:
    """Those whose size shows what the links carry."""
    largest = max((one.bytes for one in measurements), default=0)
    return tuple(one for one in measurements if one.bytes * SATURATING > largest)


def _low(one: Comparison, floors: Floors) -> str:
    """Which of them it falls short of."""
    if one.baseline is not None and one.spread is not None:
        least = min(floors.baseline * one.baseline, one.baseline - floors.spreads * one.spread)
        if one.busbw < least:
            return "baseline"
    if one.expected is not None and one.busbw < floors.expected * one.expected:
        return "expected"
    if one.fleet is not None and one.busbw < floors.fleet * one.fleet:
        return "fleet"
    return ""
