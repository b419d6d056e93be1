"""What lasted: means and times over a window, and whether enough of the window is known to tell."""

from __future__ import annotations

from collections.abc import Iterable
from operator import mul

from gpumon.health.alerts.history import STEP
from gpumon.health.facts import GpuCase
from gpumon.health.past import Past, Series

KNOWN_SHARE = 0.9
"""Of a window that has to be known, else nobody can tell what its mean is."""


def labelled(series: Iterable[Series], **labels: str) -> Series | None:
    """The first one that has these labels."""
    return next((one for one in series if labels.items() <= one.labels.items()), None)


def mean(series: Series) -> float:
    """Of all points; quicker than PromQL's average, which looks after the last digit."""
    values, counts = series.window.values, series.window.counts
    return float(sum(map(mul, values, counts))) / sum(counts)


def whole_mean(gpu: GpuCase, past: Past, **labels: str) -> float | None:
    """Over the window; None while too little of it is known."""
    series = labelled(gpu.series(past), **labels)
    if series is None or _known(series, past) < KNOWN_SHARE * past.seconds:
        return None
    return mean(series)


def whole_peak(gpu: GpuCase, past: Past, **labels: str) -> float | None:
    """The highest point of the window; None while too little of it is known."""
    series = labelled(gpu.series(past), **labels)
    if series is None or _known(series, past) < KNOWN_SHARE * past.seconds:
        return None
    return max(series.window.values)


def held(series: Series | None, past: Past, seconds: float) -> bool | None:
    """Whether a flag was 1 for so many seconds of the window; None while too little is known to tell."""
    if series is None:
        return None
    known = _known(series, past)
    on = mean(series) * known
    if on >= seconds:
        return True
    unknown = max(0.0, past.seconds - known - 2 * STEP)
    return None if on + unknown >= seconds else False


def _known(series: Series, past: Past) -> float:
    """Seconds of the window about which the series says something; 0 of one that has ended."""
    window = series.window
    if window.end - window.last_at > 2 * STEP:
        return 0.0
    return min(past.seconds, series.covered + STEP)
