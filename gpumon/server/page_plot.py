"""Computes the SVG plot of the runs of a probe: the value at the largest size over time, and its baseline."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from gpumon.model.durations import from_rfc3339
from gpumon.outputs.formatting import participants, probe_size, quantity
from gpumon.outputs.probe_text import comparison, largest
from gpumon.outputs.responses.base import Document

WIDTH, HEIGHT = 640, 280
LEFT, RIGHT, TOP, BOTTOM = 64, 58, 12, 34
PADDING = 8
TICK = 7
LABEL_DISTANCE = 14
MIN_BAND = 3.0
"""Minimum distance from the median to an edge of the band around it, so that a narrow band remains visible."""
STEPS = (1, 2, 2.5, 5, 10)
SIGNS = {"ok": "●", "degraded": "▲", "skipped": "|"}
OTHER_SIGN = "✕"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """The value of one run with an algorithm (index `series` in Plot.series), or a run without a measurement."""

    x: float
    y: float
    outcome: str
    title: str
    series: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotSeries:
    """Line, medians, spread and label of one algorithm over time, as points of SVG polylines and polygons.

    Where runs have no median, one polyline and one polygon end, and the next begin.
    """

    name: str
    line: str
    medians: tuple[str, ...]
    bands: tuple[str, ...]
    label: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """The whole plot. Coordinates are units of the SVG view box, which is WIDTH by HEIGHT."""

    marks: tuple[Mark, ...]
    series: tuple[PlotSeries, ...]
    ticks: tuple[tuple[float, str], ...]
    """Vertical position and value of each horizontal grid line."""
    first: str
    last: str
    size: str
    """Largest size, as text, of the newest run that the lines connect."""
    summary: str
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    floor: int = HEIGHT - BOTTOM
    tick: int = TICK


@dataclass(frozen=True, slots=True, kw_only=True)
class _Point:
    """Value of one run with one algorithm, and the median of this host at that time."""

    run: Document
    x: float
    quantity: str
    unit: str
    value: float
    median: float | None
    spread: float
    comparable: bool
    """True if the run has the most common number of ranks and size. Lines connect only such runs."""


def plot(runs: Sequence[Document]) -> Plot | None:
    """Return the plot of these runs (newest first); None if no run has usable measurements. The scale begins at 0."""
    ordered = list(reversed(runs))
    times = [from_rfc3339(run["started"]).timestamp() for run in ordered]
    length = times[-1] - times[0] if times else 0.0
    width = WIDTH - RIGHT - LEFT - 2 * PADDING
    positions = [round(LEFT + PADDING + ((at - times[0]) / length if length > 0 else 1.0) * width, 1) for at in times]
    by_algorithm = _points(ordered, positions)
    values = [point.value for points in by_algorithm.values() for point in points]
    if not values:
        return None
    magnitude = 10.0 ** math.floor(math.log10(max(values))) if max(values) > 0 else 1.0
    top = next(step * magnitude for step in STEPS if step * magnitude >= max(values))
    newest = next(point for points in by_algorithm.values() for point in reversed(points) if point.comparable)
    return Plot(
        marks=(
            *_measured_runs(by_algorithm, top),
            *(
                Mark(x=x, y=HEIGHT - BOTTOM, outcome=run["outcome"], title=_title(run))
                for run, x in zip(ordered, positions, strict=True)
                if not largest(run)
            ),
        ),
        series=tuple(_separate_labels([_series(name, points, top) for name, points in by_algorithm.items()])),
        ticks=tuple((_y(top * part, top), quantity(top * part, newest.unit)) for part in (0.0, 0.25, 0.5, 0.75, 1.0)),
        first=ordered[0]["started"],
        last=ordered[-1]["started"],
        size=_kind(newest.run)[1],
        summary=_summary(runs, values, newest),
    )


def _points(runs: Sequence[Document], positions: Sequence[float]) -> Mapping[str, list[_Point]]:
    by_algorithm: dict[str, list[_Point]] = {}
    most_common = Counter(_kind(run) for run in runs if largest(run)).most_common(1)
    for run, x in zip(runs, positions, strict=True):
        for name, measurement in largest(run).items():
            usual = comparison(run, measurement) or {}
            point = _Point(
                run=run,
                x=x,
                quantity=measurement["quantity"],
                unit=measurement["unit"],
                value=float(measurement["value"]),
                median=usual.get("baseline"),
                spread=usual.get("spread") or 0.0,
                comparable=_kind(run) == most_common[0][0],
            )
            by_algorithm.setdefault(name, []).append(point)
    return by_algorithm


def _kind(run: Document) -> tuple[int, str]:
    """Return a run's number of ranks, and its largest size as text."""
    measurement = max(largest(run).values(), key=lambda item: item["size"])
    return run["ranks"], probe_size(measurement["size"], measurement["size_unit"])


def _measured_runs(by_algorithm: Mapping[str, Sequence[_Point]], top: float) -> Iterator[Mark]:
    for number, (name, points) in enumerate(by_algorithm.items()):
        for point in points:
            text = f"{name} {quantity(point.value, point.unit)}"
            text += "" if point.comparable else f" at {_kind(point.run)[1]} on {participants(point.run)}"
            median = f" (median: {quantity(point.median, point.unit)})" if point.median else ""
            title = f"{_title(point.run)}, {text}{median}"
            yield Mark(x=point.x, y=_y(point.value, top), outcome=point.run["outcome"], title=title, series=number)


def _series(name: str, every: Sequence[_Point], top: float) -> PlotSeries:
    points = [point for point in every if point.comparable]
    medians, bands = [], []
    for has_median, group in groupby(points, lambda point: point.median is not None):
        if has_median:
            part = [(point.x, _y(point.median or 0.0, top), point.spread / top) for point in group]
            medians.append(" ".join(f"{x},{y}" for x, y, _ in part))
            edges = [(x, y, max(MIN_BAND, spread * (HEIGHT - BOTTOM - TOP))) for x, y, spread in part]
            upper = [f"{x},{round(max(TOP, y - half), 1)}" for x, y, half in edges]
            lower = [f"{x},{round(min(HEIGHT - BOTTOM, y + half), 1)}" for x, y, half in reversed(edges)]
            bands.append(" ".join(upper + lower))  # along the upper edge and back along the lower edge
    return PlotSeries(
        name=name,
        line=" ".join(f"{point.x},{_y(point.value, top)}" for point in points),
        medians=tuple(medians),
        bands=tuple(bands),
        label=_y((points or every)[-1].value, top) + 4,
    )


def _separate_labels(series: Sequence[PlotSeries]) -> Iterator[PlotSeries]:
    """Yield the series in the same order, with labels moved down so that no label covers another."""
    above = -math.inf
    moved = {}
    for item in sorted(series, key=lambda item: item.label):
        above = max(item.label, above + LABEL_DISTANCE)
        moved[item.name] = above
    for item in series:
        yield replace(item, label=round(moved[item.name], 1))


def _y(value: float, top: float) -> float:
    """Return the vertical position of a value. Values above `top` are drawn at the top."""
    return round(HEIGHT - BOTTOM - min(value, top) / top * (HEIGHT - BOTTOM - TOP), 1)


def _title(run: Document) -> str:
    reason = f" ({run['reason']})" if run["reason"] else ""
    return f"{run['started'][:10]} {run['started'][11:16]} UTC: {run['outcome']}{reason}"


def _summary(runs: Sequence[Document], values: Sequence[float], newest: _Point) -> str:
    outcomes = Counter(run["outcome"] for run in runs)
    counted = ", ".join(
        f"{number}\N{NO-BREAK SPACE}{outcome}\N{NO-BREAK SPACE}{SIGNS.get(outcome, OTHER_SIGN)}"
        for outcome, number in outcomes.most_common()
    )
    ends = dict.fromkeys(quantity(value, newest.unit) for value in (min(values), max(values)))
    return f"{counted}; {newest.quantity} {' to '.join(ends)}"
