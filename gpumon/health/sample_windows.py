"""Sample windows: the recent samples of the metrics that checks read over time. Pure.

All series share one timeline. A series stores only the samples at which its value changed, so that a constant series
costs nothing however long its window is.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import mul
from statistics import median
from typing import NamedTuple, TypeVar

from gpumon.health.verdict import NODE
from gpumon.model.reading import Labels, Sample

STEP = 15.0
"""Minimum seconds between stored points. The newest point, and the first point of a series, may be closer."""
MIN_COVERAGE = 0.9
"""Minimum share of a window that samples must cover. Below it the mean and the peak are unknown."""


class SampleWindow(NamedTuple):
    """A metric, and for how many recent seconds a check reads its samples."""

    metric: str
    """Full metric name. Metrics that are exported only with the setting `metrics.detailed` are not recorded."""
    seconds: float


class WindowSeries(NamedTuple):
    """The samples of one series within a window, as runs of equal values in order of time; at least one run."""

    labels: Mapping[str, str]
    values: list[float]
    counts: list[int]
    """Number of points in each run."""
    first_at: float
    """Boot clock of the first point."""
    last_at: float
    """Boot clock of the last point."""
    end: float
    """Boot clock of the end of the window."""
    changed_at: float
    """Boot clock of the first point of the last run, at which the series changed to its last value."""

    @property
    def gain(self) -> float:
        """Return the increase in the window. The series must be a counter that never decreases while the agent runs."""
        return self.values[-1] - self.values[0]

    @property
    def mean(self) -> float:
        return float(sum(map(mul, self.values, self.counts))) / sum(self.counts)

    @property
    def median(self) -> float:
        return median(value for value, count in zip(self.values, self.counts, strict=True) for _ in range(count))

    @property
    def covered_seconds(self) -> float:
        """Return the seconds between the first point and the last."""
        return self.last_at - self.first_at

    def covers(self, window: SampleWindow) -> bool:
        """Return whether the points cover enough of the window for a mean or a peak."""
        return self.observed_seconds(window) >= MIN_COVERAGE * window.seconds

    def observed_seconds(self, window: SampleWindow) -> float:
        """Return the seconds of the window that the points cover; 0 if its last 2 * STEP seconds have no point."""
        if self.end - self.last_at > 2 * STEP:
            return 0.0
        return min(window.seconds, self.covered_seconds + STEP)


class CounterGrowth(NamedTuple):
    """A counter that increased within a window."""

    labels: Mapping[str, str]
    steps: tuple[tuple[float, float], ...]
    """(Boot clock time at which the increase was read, increase) for each increase, newest last."""

    @property
    def gain(self) -> float:
        return sum(gain for _, gain in self.steps)

    @property
    def last_at(self) -> float:
        return self.steps[-1][0]


S = TypeVar("S", bound=WindowSeries | CounterGrowth)


class _Runs(NamedTuple):
    """One stored series: ordinals of the points at which its value changed, and the new values, None while absent."""

    starts: tuple[int, ...] = ()
    values: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleHistory:
    """The recent samples of the metrics that checks read. `add` returns a new history and shares unchanged series."""

    windows: Mapping[str, float] = field(default_factory=dict)
    """Seconds to keep, by metric name. Other metrics are not recorded."""
    times: tuple[float, ...] = ()
    """Boot clock times of the points kept."""
    first: int = 0
    """Ordinal of times[0]: points are numbered since the start, and the oldest are dropped."""
    runs: Mapping[str, Mapping[Labels, _Runs]] = field(default_factory=dict)
    begins: bool = False
    """Whether a series began with the newest point. Then that point is kept, or a first increase would be lost."""

    def recording(self, windows: Mapping[str, float]) -> SampleHistory:
        """Return a history with the same samples that records these windows from now on."""
        return replace(self, windows=windows)

    def add(self, samples: Iterable[Sample], at: float) -> SampleHistory:
        """Return the history with one more point at boot clock `at`. A series without a sample is absent from it on."""
        latest: dict[str, dict[Labels, float]] = {name: {} for name in self.windows}
        for name, labels, value in samples:
            series = latest.get(name)
            if series is not None:
                series[_sorted_labels(labels)] = value
        times = self.times
        close = len(times) > 1 and times[-1] - times[-2] < STEP and not self.begins
        if times and (at == times[-1] or close):  # the new point replaces the newest one
            times = times[:-1]
        expired = bisect_left(times, at - max(self.windows.values(), default=0.0))
        times, first = (*times[expired:], at), self.first + expired
        position = first + len(times) - 1
        runs = {
            name: _extend_metric(self.runs.get(name, {}), latest[name], position, first + bisect_left(times, at - keep))
            for name, keep in self.windows.items()
        }
        begins = any(not runs[name].keys() <= self.runs.get(name, {}).keys() for name in runs)
        return replace(self, times=times, first=first, runs=runs, begins=begins)

    def series(self, metric: str, seconds: float, at: float) -> Iterator[WindowSeries]:
        """Yield each series of the metric that has a point in the closed interval [at - seconds, at], limited to it.

        Raise LookupError if no check has a window of that metric and length.
        """
        low, high = self._limits(metric, seconds, at)
        for labels, runs in self.runs.get(metric, {}).items():
            if cut := self._cut(labels, runs, low, high, at):
                yield cut

    def growth(self, metric: str, seconds: float, at: float) -> Iterator[CounterGrowth]:
        """Yield each counter of the metric that increased between points in the closed interval [at - seconds, at].

        This is fast for error counters, which hardly ever change: only the time of their last change is compared.
        """
        low, high = self._limits(metric, seconds, at)
        for labels, runs in self.runs.get(metric, {}).items():
            if runs.starts[-1] > low and (steps := self._steps(runs, low, high)):
                yield CounterGrowth(dict(labels), steps)

    def _limits(self, metric: str, seconds: float, at: float) -> tuple[int, int]:
        """Return the ordinals of the first point in the interval, and of the first one after it."""
        if self.windows.get(metric, 0.0) < seconds:
            raise LookupError(f"{metric} is not recorded for {seconds:g} s: add a window to `windows` of the check")
        return self.first + bisect_left(self.times, at - seconds), self.first + bisect_right(self.times, at)

    def _steps(self, runs: _Runs, low: int, high: int) -> tuple[tuple[float, float], ...]:
        steps, before = list[tuple[float, float]](), None
        for start, value in zip(runs.starts, runs.values, strict=True):
            if value is not None and before is not None and value > before and low < start < high:
                steps.append((self.times[start - self.first], value - before))
            before = before if value is None else value
        return tuple(steps)

    def _cut(self, labels: Labels, runs: _Runs, low: int, high: int, end: float) -> WindowSeries | None:
        if low >= high:
            return None
        if runs.starts[-1] <= low and (constant := runs.values[-1]) is not None:  # as nearly always
            first_at, last_at = self.times[low - self.first], self.times[high - 1 - self.first]
            return WindowSeries(dict(labels), [constant], [high - low], first_at, last_at, end, first_at)
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
        if not values:
            return None
        first_at, last_at, changed_at = (self.times[ordinal - self.first] for ordinal in (first, last - 1, since))
        return WindowSeries(dict(labels), values, counts, first_at, last_at, end, changed_at)


@lru_cache(maxsize=1 << 14)
def _sorted_labels(labels: Labels) -> Labels:
    return tuple(sorted(pair for pair in labels if pair[1]))


def _extend_metric(
    before: Mapping[Labels, _Runs], now: Mapping[Labels, float], position: int, oldest: int
) -> dict[Labels, _Runs]:
    after = {
        labels: _extend_series(before.get(labels, _Runs()), value, position, oldest) for labels, value in now.items()
    }
    for labels, runs in before.items():
        if labels not in now:
            ended = _extend_series(runs, None, position, oldest)
            if any(value is not None for value in ended.values):
                after[labels] = ended
    return after


def _extend_series(runs: _Runs, value: float | None, position: int, oldest: int) -> _Runs:
    starts, values = runs
    if starts and starts[-1] < position and values[-1] == value and (len(starts) == 1 or starts[1] > oldest):
        return runs  # unchanged, as nearly always
    if starts and starts[-1] == position:  # the new point replaces the newest one
        starts, values = starts[:-1], values[:-1]
    if not values or values[-1] != value:
        starts, values = (*starts, position), (*values, value)
    expired = max(bisect_right(starts, oldest) - 1, 0)
    if expired:
        starts, values = starts[expired:], values[expired:]
    return runs if starts is runs.starts else _Runs(starts, values)


def by_device(series: Iterable[S]) -> dict[str, tuple[S, ...]]:
    """Return the series by device, as verdicts name it: `uuid`, `device/port`, or NODE for a series without device."""
    grouped: dict[str, list[S]] = {}
    for each in series:
        port = f"{each.labels['device']}/{each.labels['port']}" if "port" in each.labels else NODE
        grouped.setdefault(each.labels.get("uuid", port), []).append(each)
    return {device: tuple(each) for device, each in grouped.items()}


def with_labels(series: Iterable[WindowSeries], **labels: str) -> WindowSeries | None:
    """Return the first series that has these labels; None if there is none."""
    return next((each for each in series if labels.items() <= each.labels.items()), None)


def flag_was_set(series: WindowSeries | None, window: SampleWindow, seconds: float) -> bool | None:
    """Return whether a 0/1 series was 1 for at least `seconds` of the window; None if samples do not suffice."""
    if series is None:
        return None
    observed = series.observed_seconds(window)
    on = series.mean * observed
    if on >= seconds:
        return True
    unobserved = max(0.0, window.seconds - observed - 2 * STEP)
    return None if on + unobserved >= seconds else False
