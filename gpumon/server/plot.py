"""The history of the all-reduce as an SVG: bus bandwidth of the largest size over time, before what is normal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby

from gpumon.outputs.probe_history import comparison, largest
from gpumon.outputs.responses.base import Document
from gpumon.outputs.words import bandwidth, size, took_part

WIDTH, HEIGHT = 640, 280
LEFT, RIGHT, TOP, BOTTOM = 64, 58, 12, 34
PADDING = 8
TICK = 7
"""Height of the mark of a skip, which stands below the floor."""
APART = 14
"""Between two labels."""
LEAST_BAND = 3.0
"""Half the height at which a band is still seen."""
STEPS = (1, 2, 2.5, 5, 10)
SIGNS = {"ok": "●", "degraded": "▲", "skipped": "|"}
OTHER_SIGN = "✕"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One run, or what it came to with one algorithm."""

    x: float
    y: float
    outcome: str
    title: str
    series: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One algorithm over time."""

    name: str
    line: str
    """Points for a polyline."""
    medians: tuple[str, ...]
    """Points of this host's own median, as it was then; broken where there was none."""
    bands: tuple[str, ...]
    """Polygons of the median and its spread."""
    label: float
    """Where its name stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A line across, with what it stands for."""

    y: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Geometry in units of the view box, WIDTH by HEIGHT."""

    marks: tuple[Mark, ...]
    series: tuple[Series, ...]
    ticks: tuple[Tick, ...]
    first: str
    last: str
    size: str
    """At which it was measured."""
    summary: str
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    floor: int = HEIGHT - BOTTOM
    tick: int = TICK

    @property
    def banded(self) -> bool:
        return any(one.bands for one in self.series)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Point:
    """What a run came to with one algorithm, and what was normal."""

    run: Document
    x: float
    value: float
    median: float | None
    spread: float
    alike: bool
    """As many ranks at the same size as most have: what did not, no line joins."""


def plot(runs: Sequence[Document]) -> Plot | None:
    """`runs` newest first, as the documents have them; None before one has measured. The scale begins at 0."""
    ordered = list(reversed(runs))
    places = _places(ordered)
    found = _points(ordered, places)
    values = [point.value for points in found.values() for point in points]
    if not values:
        return None
    top = _ceiling(max(values))
    newest = next(point.run for points in found.values() for point in reversed(points) if point.alike)
    return Plot(
        marks=(*_measured(found, top), *_without(ordered, places)),
        series=tuple(_labelled([_series(name, points, top) for name, points in found.items()])),
        ticks=tuple(Tick(y=_y(top * part, top), text=bandwidth(top * part)) for part in (0.0, 0.25, 0.5, 0.75, 1.0)),
        first=ordered[0]["started"],
        last=ordered[-1]["started"],
        size=size(max(one["bytes"] for one in largest(newest).values())),
        summary=_summary(runs, values),
    )


def _places(runs: Sequence[Document]) -> list[float]:
    """From left to right in proportion to time."""
    times = [datetime.fromisoformat(run["started"]).timestamp() for run in runs]
    span = times[-1] - times[0] if times else 0.0
    width = WIDTH - RIGHT - LEFT - 2 * PADDING
    return [round(LEFT + PADDING + ((at - times[0]) / span if span > 0 else 1.0) * width, 1) for at in times]


def _points(runs: Sequence[Document], places: Sequence[float]) -> Mapping[str, list[_Point]]:
    """By algorithm."""
    found: dict[str, list[_Point]] = {}
    usual_kind = Counter(kind for run in runs if (kind := _kind(run))).most_common(1)
    for run, x in zip(runs, places, strict=True):
        for name, one in largest(run).items():
            usual = comparison(run, one) or {"baseline": None, "spread": None}
            point = _Point(
                run=run,
                x=x,
                value=float(one["busbw_bytes_per_second"]),
                median=usual["baseline"],
                spread=usual["spread"] or 0.0,
                alike=_kind(run) == usual_kind[0][0],
            )
            found.setdefault(name, []).append(point)
    return found


def _kind(run: Document) -> tuple[int, int] | None:
    """Ranks, and the largest size; None of a run without."""
    found = largest(run).values()
    return (run["ranks"], max(one["bytes"] for one in found)) if found else None


def _measured(found: Mapping[str, Sequence[_Point]], top: float) -> Iterator[Mark]:
    for number, (name, points) in enumerate(found.items()):
        for point in points:
            what = f"{name} {bandwidth(point.value)}"
            what += "" if point.alike else f" at {size((_kind(point.run) or (0, 0))[1])} on {took_part(point.run)}"
            title = f"{_title(point.run)}, {what}" + (f" (usual: {bandwidth(point.median)})" if point.median else "")
            yield Mark(x=point.x, y=_y(point.value, top), outcome=point.run["outcome"], title=title, series=number)


def _without(runs: Sequence[Document], places: Sequence[float]) -> Iterator[Mark]:
    """Runs that came to nothing stand on the floor."""
    for run, x in zip(runs, places, strict=True):
        if not largest(run):
            yield Mark(x=x, y=HEIGHT - BOTTOM, outcome=run["outcome"], title=_title(run))


def _series(name: str, every: Sequence[_Point], top: float) -> Series:
    points = [one for one in every if one.alike]
    known = [list(part) for has, part in groupby(points, lambda one: one.median is not None) if has]
    return Series(
        name=name,
        line=" ".join(f"{one.x},{_y(one.value, top)}" for one in points),
        medians=tuple(" ".join(f"{one.x},{_y(one.median or 0.0, top)}" for one in part) for part in known),
        bands=tuple(_band(part, top) for part in known),
        label=_y((points or every)[-1].value, top) + 4,
    )


def _band(points: Sequence[_Point], top: float) -> str:
    """There along the upper edge, back along the lower one."""
    edges = [(one.x, _y(one.median or 0.0, top), _height(one.spread, top)) for one in points]
    upper = [f"{x},{round(max(TOP, y - half), 1)}" for x, y, half in edges]
    lower = [f"{x},{round(min(HEIGHT - BOTTOM, y + half), 1)}" for x, y, half in reversed(edges)]
    return " ".join(upper + lower)


def _labelled(series: Sequence[Series]) -> Iterator[Series]:
    """From the top down, no name over another."""
    above = -math.inf
    moved = {}
    for one in sorted(series, key=lambda one: one.label):
        above = max(one.label, above + APART)
        moved[one.name] = above
    for one in series:
        yield replace(one, label=round(moved[one.name], 1))


def _ceiling(value: float) -> float:
    """The next round number at or above."""
    magnitude = 10.0 ** math.floor(math.log10(value)) if value > 0 else 1.0
    return next(step * magnitude for step in STEPS if step * magnitude >= value)


def _y(value: float, top: float) -> float:
    """What is above the scale stands at its top."""
    return round(HEIGHT - BOTTOM - min(value, top) / top * (HEIGHT - BOTTOM - TOP), 1)


def _height(value: float, top: float) -> float:
    return max(LEAST_BAND, value / top * (HEIGHT - BOTTOM - TOP))


def _title(run: Document) -> str:
    reason = f" ({run['reason']})" if run["reason"] else ""
    return f"{run['started'][:10]} {run['started'][11:16]} UTC: {run['outcome']}{reason}"


def _summary(runs: Sequence[Document], values: Sequence[float]) -> str:
    outcomes = Counter(run["outcome"] for run in runs)
    counted = ", ".join(
        f"{number}\N{NO-BREAK SPACE}{outcome}\N{NO-BREAK SPACE}{SIGNS.get(outcome, OTHER_SIGN)}"
        for outcome, number in outcomes.most_common()
    )
    return f"{counted}; {bandwidth(min(values))} to {bandwidth(max(values))}"
