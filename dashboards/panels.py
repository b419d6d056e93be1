"""The panel types of the dashboards and their rendering as Grafana's classic JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from gpumon.outputs.metric_catalogue import catalogue

Json = dict[str, Any]

SOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
NODE = ('instance=~"$instance"',)
GPU = (*NODE, 'gpu=~"$gpu"', 'uuid=~"$uuid"')
WIDTH = 24
"""Columns of Grafana's grid."""


@cache
def _labels() -> Mapping[str, tuple[str, ...]]:
    return {entry.name: entry.labels for entry in catalogue()}


def series(metric: str, *matchers: str) -> str:
    """Return the series of a metric on the selected nodes and GPUs. Raises KeyError for an unknown metric."""
    chosen = GPU if "uuid" in _labels()[metric] else NODE
    return f"{metric}{{{','.join((*chosen, *matchers))}}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A panel of a dashboard. Rendering adds the options of its kind."""

    kind: str
    """stat, timeseries, table or state-timeline."""
    title: str
    description: str
    queries: Sequence[str]
    legend: str = ""
    """{{label}} is a label of the result."""
    unit: str = "none"
    """Unit id of Grafana."""
    width: int = 12
    height: int = 8
    quiet: bool = False
    """True if the panel shows problems only, so that no series is normal."""
    colors: Mapping[float | None, str] = field(default_factory=lambda: {None: "text"})
    """Color by the value at which it begins. The first begins at None."""
    minimum: float | None = None
    maximum: float | None = None
    bars: bool = False
    columns: Mapping[str, str] | None = None
    """Headings of a table, in order, by label name or query value (Value #A, Value #B)."""
    units: Mapping[str, str] = field(default_factory=dict)
    """Units of the columns of a table, by heading."""
    words: Mapping[float, tuple[str, str]] = field(default_factory=dict)
    """Text and color that replace a value."""

    @property
    def instant(self) -> bool:
        """Return whether the query is instant, as for a stat or a table. Graphs query a range."""
        return self.kind in {"stat", "table"}


def stat(title: str, description: str, query: str, **more: Any) -> Panel:
    """Return a panel with one number."""
    return Panel(**{"width": 3, "height": 4} | more, kind="stat", title=title, description=description, queries=[query])


def graph(title: str, description: str, query: str, legend: str, **more: Any) -> Panel:
    """Return a graph with a line for each series, or with bars for increases between points."""
    return Panel(**more, kind="timeseries", title=title, description=description, queries=[query], legend=legend)


def timeline(title: str, description: str, query: str, legend: str, **more: Any) -> Panel:
    """Return a timeline of states with a row for each series."""
    return Panel(**more, kind="state-timeline", title=title, description=description, queries=[query], legend=legend)


def table(title: str, description: str, queries: Sequence[str], columns: Mapping[str, str], **more: Any) -> Panel:
    """Return a table panel of the current values, one line for each set of labels."""
    return Panel(**more, kind="table", title=title, description=description, queries=queries, columns=columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A row of the dashboard, with its panels from left to right."""

    title: str
    panels: Sequence[Panel]


def layout(sections: Sequence[Section]) -> list[Json]:
    """Return all panels with their ids and positions on the grid."""
    placed: list[Json] = []
    bottom = 0
    for section in sections:
        row = {"type": "row", "title": section.title, "collapsed": False, "panels": []}
        placed.append(row | _place(len(placed), 0, bottom, WIDTH, 1))
        x, y, bottom = 0, bottom + 1, bottom + 1
        for panel in section.panels:
            if x + panel.width > WIDTH:
                x, y = 0, bottom
            placed.append(_panel(panel) | _place(len(placed), x, y, panel.width, panel.height))
            x, bottom = x + panel.width, max(bottom, y + panel.height)
    return placed


def _place(before: int, x: int, y: int, width: int, height: int) -> Json:
    return {"id": before + 1, "gridPos": {"x": x, "y": y, "w": width, "h": height}}


def _panel(panel: Panel) -> Json:
    written: Json = {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "targets": [_target(panel, query, letter) for query, letter in zip(panel.queries, "ABCDEFGH", strict=False)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": _overrides(panel)},
        "options": _OPTIONS[panel.kind],
    }
    if panel.columns is not None:
        written["transformations"] = _columns(panel.columns)
    return written


def _target(panel: Panel, query: str, letter: str) -> Json:
    return {
        "refId": letter,
        "datasource": SOURCE,
        "editorMode": "code",
        "expr": query,
        "legendFormat": panel.legend or "__auto",
        "format": "table" if panel.kind == "table" else "time_series",
        "instant": panel.instant,
        "range": not panel.instant,
    }


def _defaults(panel: Panel) -> Json:
    defaults: Json = {
        "unit": panel.unit,
        "noValue": "nothing reported" if panel.quiet else "n/a",
        "color": {"mode": "palette-classic" if panel.kind == "timeseries" else "thresholds"},
        "thresholds": {
            "mode": "absolute",
            "steps": [{"color": color, "value": value} for value, color in panel.colors.items()],
        },
        "mappings": _mappings(panel.words),
        "custom": _CUSTOM[panel.kind] | ({"drawStyle": "bars", "fillOpacity": 60} if panel.bars else {}),
    }
    limits = {"min": panel.minimum, "max": panel.maximum}
    return defaults | {name: value for name, value in limits.items() if value is not None}


def _mappings(words: Mapping[float, tuple[str, str]]) -> list[Json]:
    options = {
        f"{value:g}": {"text": text, "color": color, "index": index}
        for index, (value, (text, color)) in enumerate(words.items())
    }
    return [{"type": "value", "options": options}] if options else []


def _overrides(panel: Panel) -> list[Json]:
    return [
        {"matcher": {"id": "byName", "options": heading}, "properties": [{"id": "unit", "value": unit}]}
        for heading, unit in panel.units.items()
    ]


def _columns(columns: Mapping[str, str]) -> list[Json]:
    """Return transformations to one row for each set of labels, with the named columns only."""
    names = list(columns)
    keep = {"id": "filterFieldsByName", "options": {"include": {"names": names}}}
    order = {"indexByName": {name: place for place, name in enumerate(names)}, "renameByName": dict(columns)}
    return [{"id": "merge", "options": {}}, keep, {"id": "organize", "options": {"excludeByName": {}, **order}}]


_OPTIONS: Mapping[str, Json] = {
    "stat": {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value",
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "textMode": "auto",
    },
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "table": {"showHeader": True, "cellHeight": "sm"},
    "state-timeline": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "single", "sort": "none"},
        "mergeValues": True,
        "showValue": "never",
        "rowHeight": 0.8,
        "alignValue": "left",
    },
}
_CUSTOM: Mapping[str, Json] = {
    "stat": {},
    "timeseries": {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 0,
        "showPoints": "never",
        "spanNulls": False,
        "axisPlacement": "auto",
        "scaleDistribution": {"type": "linear"},
        "stacking": {"mode": "none", "group": "A"},
        "thresholdsStyle": {"mode": "off"},
    },
    "table": {"align": "auto", "cellOptions": {"type": "color-text"}, "filterable": True, "inspect": False},
    "state-timeline": {"lineWidth": 0, "fillOpacity": 80, "spanNulls": False},
}
