"""What PromQL's functions over a window make of one series, step by step as Prometheus 2 computes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from gpumon.health.alerts.history import Window


def increase(window: Window) -> float | None:
    """Growth of a counter, its resets bridged, extrapolated to the window's edges; None with fewer than 2 points."""
    return _growth(window, 1.0)


def rate(window: Window) -> float | None:
    """`increase` a second."""
    return _growth(window, window.end - window.start)


def _growth(window: Window, per: float) -> float | None:
    points = sum(window.counts)
    if points < 2:
        return None
    values = window.values
    if len(values) == 1:  # most counters of faults stand still
        return 0.0
    growth = values[-1] - values[0]
    previous = values[0]
    for value in values:
        if value < previous:
            growth += previous
        previous = value
    covered = window.last_at - window.first_at
    return growth * (_extrapolated(window, growth, covered, covered / (points - 1)) / covered / per)


def _extrapolated(window: Window, growth: float, covered: float, spacing: float) -> float:
    """Seconds that the growth is taken to stand for."""
    before, after = window.first_at - window.start, window.end - window.last_at
    if growth > 0 and window.values[0] >= 0:  # a counter was never below 0
        before = min(before, covered * (window.values[0] / growth))
    for gap in (before, after):
        covered += gap if gap < spacing * 1.1 else spacing / 2
    return covered


def average(window: Window) -> float:
    """Mean of the points."""
    if len(window.values) == 1:
        return window.values[0]
    mean = lost = 0.0
    count = 0
    for value, times in zip(window.values, window.counts, strict=True):
        for _ in range(times):
            count += 1
            mean, lost = _plus(mean, lost, value / count - mean / count)
    return mean + lost


def _plus(total: float, lost: float, term: float) -> tuple[float, float]:
    """Add with Neumaier's compensation, as Prometheus does, so that a share of exactly the limit compares alike."""
    new = total + term
    if abs(total) >= abs(term):
        return new, lost + ((total - new) + term)
    return new, lost + ((term - new) + total)


def _largest(window: Window) -> float:
    return max(window.values)


def _smallest(window: Window) -> float:
    return min(window.values)


def _newest(window: Window) -> float:
    return window.values[-1]


FUNCTIONS: Mapping[str, Callable[[Window], float | None]] = {
    "increase": increase,
    "rate": rate,
    "min_over_time": _smallest,
    "max_over_time": _largest,
    "avg_over_time": average,
    "last_over_time": _newest,
}


def divided(left: float, right: float) -> float:
    """Division that knows infinity and NaN."""
    if right:
        return left / right
    if left == 0 or math.isnan(left) or math.isnan(right):
        return math.nan
    return math.copysign(math.inf, left) * math.copysign(1.0, right)
