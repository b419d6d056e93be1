"""The history of the all-reduce as an SVG: bus bandwidth of the largest size over time, outcomes marked."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from gpumon.outputs.document import Document
from gpumon.outputs.words import bandwidth, size
from gpumon.serve.view import largest

WIDTH, HEIGHT = 640, 150
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 10, 24
STEPS = (1, 2, 2.5, 5, 10)
SIGNS = {"ok": "●", "degraded": "▲", "skipped": "○"}
OTHER_SIGN = "✕"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One run."""

    x: float
    y: float
    outcome: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A line across, with what it stands for."""

    y: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Geometry in units of the view box, WIDTH by HEIGHT."""

    marks: tuple[Mark, ...]
    line: str
    """Points of the runs that measured something, for a polyline."""
    ticks: tuple[Tick, ...]
    first: str
    last: str
    summary: str
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    floor: int = HEIGHT - BOTTOM


def plot(runs: Sequence[Document]) -> Plot | None:
    """`runs` newest first, as the documents have them; None before one has measured. The scale begins at 0."""
    times = [datetime.fromisoformat(run["started"]).timestamp() for run in reversed(runs)]
    values = [_busbw(run) for run in reversed(runs)]
    known = [value for value in values if value is not None]
    if not known:
        return None
    top = _ceiling(max(known))
    marks = tuple(
        Mark(x=_x(at, times), y=_y(value or 0.0, top), outcome=run["outcome"], title=_title(run, value))
        for at, value, run in zip(times, values, reversed(runs), strict=True)
    )
    measured = [mark for mark, value in zip(marks, values, strict=True) if value is not None]
    return Plot(
        marks=marks,
        line=" ".join(f"{mark.x},{mark.y}" for mark in measured),
        ticks=tuple(Tick(y=_y(top * part, top), text=bandwidth(top * part)) for part in (0.0, 0.5, 1.0)),
        first=runs[-1]["started"],
        last=runs[0]["started"],
        summary=_summary(runs, known),
    )


def _busbw(run: Document) -> float | None:
    found = largest(run)
    return None if found is None else float(found["busbw_bytes_per_second"])


def _ceiling(value: float) -> float:
    """The next round number at or above."""
    magnitude = 10.0 ** math.floor(math.log10(value)) if value > 0 else 1.0
    return next(step * magnitude for step in STEPS if step * magnitude >= value)


def _x(at: float, times: Sequence[float]) -> float:
    span = times[-1] - times[0]
    part = (at - times[0]) / span if span > 0 else 1.0
    return round(LEFT + 8 + part * (WIDTH - RIGHT - LEFT - 16), 1)


def _y(value: float, top: float) -> float:
    return round(HEIGHT - BOTTOM - value / top * (HEIGHT - BOTTOM - TOP), 1)


def _title(run: Document, value: float | None) -> str:
    found = largest(run)
    measured = "" if found is None else f", {bandwidth(value)} at {size(found['bytes'])}"
    reason = f" ({run['reason']})" if run["reason"] else ""
    return f"{run['started']}: {run['outcome']}{reason}{measured}"


def _summary(runs: Sequence[Document], values: Sequence[float]) -> str:
    outcomes = Counter(run["outcome"] for run in runs)
    counted = ", ".join(
        f"{number} {outcome} {SIGNS.get(outcome, OTHER_SIGN)}" for outcome, number in outcomes.most_common()
    )
    return f"{counted}; {bandwidth(min(values))} to {bandwidth(max(values))}"
