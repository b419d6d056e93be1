"""Draws a dashboard as a web page, for the pictures in docs/. Grafana itself is not needed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import cycle

from dashboards.answers import Line, Series, Source, flat, lines, pivot
from dashboards.panels import NOT_KNOWN, Colors, Column, Dashboard, Panel, Section, Words

CELL = 36
"""Height of a row of the grid in pixels, with the gap below it."""
COLUMN = 66
"""Width of a column of the grid in pixels."""
PALETTE = ("#73bf69", "#5794f2", "#ff9830", "#f2495c", "#b877d9", "#ffee52", "#8ab8ff", "#c4162a", "#37872d", "#fade2a")
COLORS = {
    "green": "#73bf69",
    "red": "#f2495c",
    "orange": "#ff9830",
    "yellow": "#fade2a",
    "purple": "#b877d9",
    "blue": "#5794f2",
    "gray": "#6e7076",
    "text": "#d8d9da",
    "transparent": "#22252b",
}
STYLE = f"""
body {{ background: #111217; color: #d8d9da; font: 12px/1.35 sans-serif; margin: 12px; width: {24 * COLUMN}px }}
h1 {{ font-size: 18px; margin: 0 0 2px }} h2 {{ font-size: 14px; margin: 12px 0 6px }} p {{ margin: 0; color: #9d9fa3 }}
.grid {{ display: grid; grid-template-columns: repeat(24, minmax(0, 1fr)); gap: 6px }}
.panel {{ background: #181b1f; border: 1px solid #25272c; border-radius: 2px; padding: 6px 8px; overflow: hidden }}
.panel b {{ display: block; font-weight: 500; margin-bottom: 4px; white-space: nowrap; overflow: hidden }}
.number {{ font-size: 30px; text-align: center; padding-top: 12px }}
.empty {{ color: #9d9fa3; text-align: center; padding: 20px }}
table {{ border-collapse: collapse; width: 100% }} th {{ text-align: left; color: #6e9fff; font-weight: 500 }}
td, th {{ padding: 2px 8px 2px 0; border-bottom: 1px solid #25272c; vertical-align: top; font-size: 12px }}
td {{ white-space: nowrap; max-width: 170px; overflow: hidden; text-overflow: ellipsis }}
td.reason {{ white-space: normal; max-width: none }}
.matrix td {{ text-align: center; border: 1px solid #181b1f; padding: 2px 4px }}
.legend {{ color: #9d9fa3; height: 30px; overflow: hidden }}
.legend i {{ display: inline-block; width: 10px; height: 3px; margin: 3px 4px 3px 8px }}
.bar {{ display: grid; grid-template-columns: 90px 1fr; align-items: center; margin: 7px 0 }}
.bar div {{ height: 26px; padding-left: 6px; line-height: 26px }}
svg text {{ fill: #9d9fa3; font-size: 10px }}
"""
_SUFFIXES = {"bytes": "B", "Bps": "B/s", "watt": "W", "joule": "J", "hertz": "Hz"}
Answers = Sequence[Sequence[Series]]


def page(dashboard: Dashboard, source: Source) -> str:
    """Return the dashboard as a page of HTML, with the data of this Prometheus."""
    head = f"<meta charset=utf-8><title>{escape(dashboard.title)}</title><style>{STYLE}</style>"
    title = f"<h1>{escape(dashboard.title)}</h1><p>{escape(dashboard.description)}</p>"
    return head + title + "".join(_section(section, source) for section in dashboard.sections)


def _section(section: Section, source: Source) -> str:
    panels = "".join(_panel(panel, source) for panel in section.panels)
    return f"<h2>{escape(section.title)}</h2><div class=grid>{panels}</div>"


def height(dashboard: Dashboard) -> int:
    """Return a height in pixels that holds the page."""
    return 90 + sum(40 + sum(rows * CELL + 20 for rows in _rows(section.panels)) for section in dashboard.sections)


def _rows(panels: Sequence[Panel]) -> Iterable[int]:
    """Yield the height of each line of panels."""
    line: list[Panel] = []
    for panel in panels:
        line.append(panel)
        if sum(each.width for each in line) >= 24:
            yield max(each.height for each in line)
            line = []


def _panel(panel: Panel, source: Source) -> str:
    answers = source.answers(panel)
    shown = any(answers)
    body = _KINDS[panel.kind](panel, answers, source) if shown else f"<div class=empty>{NOT_KNOWN}</div>"
    size = f"grid-column: span {panel.width}; height: {panel.height * CELL}px"
    return f"<div class=panel style='{size}'><b>{escape(panel.title)}</b>{body}</div>"


def _stat(panel: Panel, answers: Answers, _: Source) -> str:
    value = answers[0][0].last
    color = _color(value, panel.words, panel.colors)
    return f"<div class=number style='color: {color}'>{_text(value, panel.unit, panel.words)}</div>"


def _bars(panel: Panel, answers: Answers, _: Source) -> str:
    found = list(flat(answers))
    top = max((series.last for series in found if math.isfinite(series.last)), default=1.0) or 1.0
    return "".join(
        f"<div class=bar>{escape(series.name)}<div style='background: {color}88; "
        f"width: {85 * series.last / top if math.isfinite(series.last) else 0:.1f}%'>"
        f"{_text(series.last, panel.unit, {})}</div></div>"
        for series, color in zip(found, cycle(PALETTE), strict=False)
    )


def _table(panel: Panel, answers: Answers, _: Source) -> str:
    shown = lines(panel, answers)
    # As in Grafana a label that no result has is no column.
    columns = [each for each in panel.columns if each.is_value or any(each.heading in line for line in shown)]
    head = "".join(f"<th>{escape(column.heading)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(_cell(column, line) for column in columns)}</tr>" for line in shown)
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(column: Column, line: Line) -> str:
    value = line.get(column.heading)
    if not isinstance(value, float):
        has_numbers = any(isinstance(cell, float) for cell in line.values())
        missing = NOT_KNOWN if column.is_value and has_numbers else ""
        return f"<td class={column.heading.replace(' ', '-')}>{escape(value or missing)}</td>"
    color = _color(value, column.words, column.colors)
    return f"<td style='color: {color}'>{_text(value, column.unit, column.words)}</td>"


def _matrix(panel: Panel, answers: Answers, _: Source) -> str:
    cells = pivot(panel, answers)
    names = sorted({name for row in cells.values() for name in row}, key=_natural)
    head = "".join(f"<th>{escape(name)}</th>" for name in (panel.columns[0].heading, *names))
    body = "".join(
        f"<tr><th>{escape(row)}</th>{''.join(_mark(panel.words, values.get(name)) for name in names)}</tr>"
        for row, values in sorted(cells.items(), key=lambda item: _natural(item[0]))
    )
    return f"<table class=matrix><tr>{head}</tr>{body}</table>"


def _mark(words: Words, value: float | None) -> str:
    if value is None:
        return "<td></td>"
    color = _color(value, words, {None: "text"})
    return f"<td style='background: {color}99'>{_text(value, 'none', words)}</td>"


def _natural(name: str) -> tuple[int, str]:
    return (int(name), "") if name.isdigit() else (-1 if name == "worst" else 1000, name)


@dataclass(frozen=True, slots=True)
class Frame:
    """The area of a graph: converts times and values to pixels."""

    left: int
    right: int
    bottom: int
    source: Source
    low: float
    """Value at the bottom. The value at the top is `high`."""
    high: float

    @property
    def step(self) -> float:
        """Return the width between two points."""
        return self.x(self.source.start + self.source.step) - self.left

    def x(self, at: float) -> float:
        """Return the horizontal position of a time."""
        return self.left + (self.right - self.left) * (at - self.source.start) / (self.source.end - self.source.start)

    def y(self, value: float) -> float:
        """Return the vertical position of a value."""
        return self.bottom * (self.high - value) / (self.high - self.low)


def _timeline(panel: Panel, answers: Answers, source: Source) -> str:
    found = list(flat(answers))
    tall = max(8, min(24, (panel.height * CELL - 60) // max(len(found), 1)))
    frame = Frame(190, panel.width * COLUMN - 24, tall * len(found), source, 0.0, 1.0)
    rows = "".join(_row(series, tall * place, tall, panel, frame) for place, series in enumerate(found))
    return f"<svg width={frame.right} height={frame.bottom + 14}>{rows}{_times(frame)}</svg>"


def _row(series: Series, top: int, tall: int, panel: Panel, frame: Frame) -> str:
    states = "".join(
        f"<rect x={frame.x(at):.1f} y={top} width={frame.step + 0.5:.1f} height={tall - 2} "
        f"fill='{_color(value, panel.words, panel.colors)}'/>"
        for at, value in series.points
    )
    return f"<text x=0 y={top + tall / 2 + 3}>{escape(series.name)[:34]}</text>{states}"


def _graph(panel: Panel, answers: Answers, source: Source) -> str:
    found = list(flat(answers))
    values = [value for series in found for _, value in series.points if math.isfinite(value)]
    low = min([*values, *([] if panel.minimum is None else [panel.minimum])], default=0.0)
    high = max([*values, *([] if panel.maximum is None else [panel.maximum])], default=1.0)
    frame = Frame(
        56, panel.width * COLUMN - 24, panel.height * CELL - 74, source, low, high if high > low else low + 1.0
    )
    draw = _columns if panel.increments else _curve
    drawn = "".join(draw(series, color, frame) for series, color in zip(found, cycle(PALETTE), strict=False))
    svg = f"<svg width={frame.right} height={frame.bottom + 14}>{_axis(panel, frame)}{_times(frame)}{drawn}</svg>"
    return f"{svg}<div class=legend>{_legend(found)}</div>"


def _axis(panel: Panel, frame: Frame) -> str:
    values = (frame.low, (frame.low + frame.high) / 2, frame.high)
    return "".join(
        f"<line x1={frame.left} x2={frame.right} y1={frame.y(value):.0f} y2={frame.y(value):.0f} stroke='#25272c'/>"
        f"<text x=0 y={frame.y(value) + 8:.0f}>{_text(value, panel.unit, {})}</text>"
        for value in values
    )


def _times(frame: Frame) -> str:
    """Return the labels of the time axis."""
    start, end = frame.source.start, frame.source.end
    return "".join(
        f"<text x={frame.x(at) - 14:.0f} y={frame.bottom + 12}>{time.strftime('%H:%M', time.localtime(at))}</text>"
        for at in (start + share * (end - start) for share in (0.05, 0.275, 0.5, 0.725, 0.95))
    )


def _curve(series: Series, color: str, frame: Frame) -> str:
    path = " ".join(f"{frame.x(at):.1f},{frame.y(value):.1f}" for at, value in series.points if math.isfinite(value))
    return f"<polyline points='{path}' fill=none stroke='{color}'/>"


def _columns(series: Series, color: str, frame: Frame) -> str:
    return "".join(
        f"<rect x={frame.x(at):.1f} y={frame.y(value):.1f} width={max(2.0, 0.7 * frame.step):.1f} "
        f"height={frame.bottom - frame.y(value):.1f} fill='{color}'/>"
        for at, value in series.points
    )


def _legend(found: Sequence[Series]) -> str:
    return "".join(
        f"<i style='background: {color}'></i>{escape(series.name)}"
        for series, color in zip(found, cycle(PALETTE), strict=False)
    )


def _color(value: float, words: Words, colors: Colors) -> str:
    if value in words:
        return COLORS[words[value][1]]
    reached = [color for limit, color in colors.items() if limit is None or value >= limit]
    return COLORS[reached[-1]]


def _text(value: float, unit: str, words: Words) -> str:
    """Return a value as Grafana shows it, with at most four digits."""
    if math.isnan(value):
        return NOT_KNOWN
    if value in words:
        return words[value][0]
    if unit in _SPECIAL:
        return _SPECIAL[unit](value)
    for limit, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if unit in _SUFFIXES and abs(value) >= limit:
            return f"{value / limit:.3g} {prefix}{_SUFFIXES[unit]}"
    return f"{value:.4g} {_SUFFIXES.get(unit, '')}".strip()


def _duration(seconds: float) -> str:
    for limit, name in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if abs(seconds) >= limit:
            return f"{seconds / limit:.3g} {name}"
    return f"{seconds:.3g} s"


def _from_now(milliseconds: float) -> str:
    distance = milliseconds / 1000 - time.time()
    return f"in {_duration(distance)}" if distance > 0 else f"{_duration(-distance)} ago"


_SPECIAL: Mapping[str, Callable[[float], str]] = {
    "percentunit": lambda value: f"{100 * value:.3g} %",
    "celsius": lambda value: f"{value:.3g} °C",
    "s": _duration,
    "h": lambda value: f"{value:.3g} h",
    "dateTimeFromNow": _from_now,
}
_KINDS = {"stat": _stat, "bars": _bars, "graph": _graph, "timeline": _timeline, "table": _table, "matrix": _matrix}
