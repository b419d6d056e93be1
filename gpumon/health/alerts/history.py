"""What the rules may look back on: the current value of each series they name, and windows of those that need one.

All series share one timeline of additions, and a series keeps only the additions at which its value changed, so one
that stands still costs nothing however long its window.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

from gpumon.health.alerts.expression import Reading, fits, windows
from gpumon.health.alerts.rules import Rule
from gpumon.model.reading import Labels, Sample

STEP = 15.0
"""Seconds between the additions that a window keeps; the newest one is always kept, and the first of each series."""
LOOKBACK = 300.0
"""Seconds after which the current values are no longer current, as in Prometheus."""


class Runs(NamedTuple):
    """One series: ordinals of the additions at which its value changed, and to what; None is absent."""

    starts: tuple[int, ...] = ()
    values: tuple[float | None, ...] = ()


class Window(NamedTuple):
    """One series within a window: runs of equal values, in the order of time; at least one."""

    values: list[float]
    counts: list[int]
    """Points in each run."""
    first_at: float
    last_at: float
    start: float
    end: float
    changed_at: float
    """When its last value was first seen within the window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Replaced whole by `add`; shares with its predecessor what did not change."""

    windows: Mapping[str, float] = field(default_factory=dict)
    """Seconds to keep, by metric name; 0 for the current value only. Other metrics are not kept."""
    latest: Mapping[str, Mapping[Labels, float]] = field(default_factory=dict)
    """Current values: what the last addition named. Labels are sorted."""
    times: tuple[float, ...] = ()
    """Boot clock of the additions kept."""
    first: int = 0
    """Ordinal of times[0]."""
    runs: Mapping[str, Mapping[Labels, Runs]] = field(default_factory=dict)
    begins: bool = False
    """Whether a series began with the newest addition: what it gains from then on would be lost with that."""

    def watching(self, rules: Iterable[Rule], also: Mapping[str, float] | None = None) -> History:
        """The same memory, kept from now on for what these rules read, and for so many seconds of other metrics."""
        needed = dict(also or {})
        for rule in rules:
            if rule.alerting is not None and rule.evaluated:
                for name, window in windows(rule.alerting).items():
                    needed[name] = max(window, needed.get(name, 0.0))
        return replace(self, windows=needed)

    def add(self, samples: Iterable[Sample], at: float) -> History:
        """With one more look at all series; a series it does not name is gone. `at`: boot clock, never going back."""
        latest: dict[str, dict[Labels, float]] = {name: {} for name in self.windows}
        for name, labels, value in samples:
            known = latest.get(name)
            if known is not None:
                known[_sorted(labels)] = value
        times, first = self._timeline(at)
        position = first + len(times) - 1
        runs = {
            name: _continued(self.runs.get(name, {}), latest[name], position, first + bisect_left(times, at - window))
            for name, window in self.windows.items()
            if window
        }
        begins = any(not runs[name].keys() <= self.runs.get(name, {}).keys() for name in runs)
        return replace(self, latest=latest, times=times, first=first, runs=runs, begins=begins)

    def current(self, of: Reading, at: float) -> dict[Labels, float]:
        """Each series that exists now."""
        if not self.times or at - self.times[-1] > LOOKBACK:
            return {}
        return {labels: value for labels, value in self.latest.get(of.name, {}).items() if fits(labels, of.where)}

    def window(self, of: Reading, seconds: float, at: float) -> Iterator[tuple[Labels, Window]]:
        """Each series that has a point in the closed interval [at - seconds, at]."""
        low = self.first + bisect_left(self.times, at - seconds)
        high = self.first + bisect_right(self.times, at)
        for labels, runs in self.runs.get(of.name, {}).items():
            if fits(labels, of.where) and (window := self._cut(runs, low, high, at - seconds, at)):
                yield labels, window

    def growth(
        self, of: Reading, seconds: float, at: float
    ) -> Iterator[tuple[Labels, tuple[tuple[float, float], ...]]]:
        """Each series that grew in the closed interval [at - seconds, at]: when it was seen to, and by how much.

        Counters of errors stand still nearly always: of those only the end is looked at.
        """
        low = self.first + bisect_left(self.times, at - seconds)
        high = self.first + bisect_right(self.times, at)
        for labels, runs in self.runs.get(of.name, {}).items():
            if runs.starts[-1] > low and fits(labels, of.where) and (steps := self._steps(runs, low, high)):
                yield labels, steps

    def _steps(self, runs: Runs, low: int, high: int) -> tuple[tuple[float, float], ...]:
        steps, before = list[tuple[float, float]](), None
        for start, value in zip(runs.starts, runs.values, strict=True):
            if value is not None and before is not None and value > before and low < start < high:
                steps.append((self.times[start - self.first], value - before))
            before = before if value is None else value
        return tuple(steps)

    def _cut(self, runs: Runs, low: int, high: int, start: float, end: float) -> Window | None:
        if runs.starts[-1] <= low:
            return self._still(runs.values[-1], low, high, start, end)
        starts, values, counts = runs.starts, list[float](), list[int]()
        begin, stop = max(bisect_right(starts, low) - 1, 0), bisect_left(starts, high)
        first = since = last = low
        for index in range(begin, stop):
            value = runs.values[index]
            if value is not None:
                since = max(starts[index], low)
                last = starts[index + 1] if index + 1 < stop else high
                first = first if values else since
                values.append(value)
                counts.append(last - since)
        if not values or low >= high:
            return None
        first_at, last_at, changed_at = (self.times[one - self.first] for one in (first, last - 1, since))
        return Window(values, counts, first_at, last_at, start, end, changed_at)

    def _still(self, value: float | None, low: int, high: int, start: float, end: float) -> Window | None:
        """Of a series that has not changed within the window, as most have not."""
        if value is None or low >= high:
            return None
        first_at = self.times[low - self.first]
        return Window([value], [high - low], first_at, self.times[high - 1 - self.first], start, end, first_at)

    def _timeline(self, at: float) -> tuple[tuple[float, ...], int]:
        """The newest addition gives way to the next one until it stands a step from the one before it.

        Unless a series began with it.
        """
        times = self.times
        close = len(times) > 1 and times[-1] - times[-2] < STEP and not self.begins
        if times and (at == times[-1] or close):
            times = times[:-1]
        expired = bisect_left(times, at - max(self.windows.values(), default=0.0))
        return (*times[expired:], at), self.first + expired


@lru_cache(maxsize=1 << 14)
def _sorted(labels: Labels) -> Labels:
    return tuple(sorted(pair for pair in labels if pair[1]))


def _continued(
    before: Mapping[Labels, Runs], now: Mapping[Labels, float], position: int, oldest: int
) -> dict[Labels, Runs]:
    after = {labels: _extended(before.get(labels, Runs()), value, position, oldest) for labels, value in now.items()}
    for labels, runs in before.items():
        if labels not in now:
            ended = _extended(runs, None, position, oldest)
            if any(value is not None for value in ended.values):
                after[labels] = ended
    return after


def _extended(runs: Runs, value: float | None, position: int, oldest: int) -> Runs:
    starts, values = runs
    if starts and starts[-1] < position and values[-1] == value and (len(starts) == 1 or starts[1] > oldest):
        return runs  # as nearly always
    if starts and starts[-1] == position:  # what the newest addition said gives way with it
        starts, values = starts[:-1], values[:-1]
    if not values or values[-1] != value:
        starts, values = (*starts, position), (*values, value)
    expired = max(bisect_right(starts, oldest) - 1, 0)
    if expired:
        starts, values = starts[expired:], values[expired:]
    return runs if starts is runs.starts else Runs(starts, values)
