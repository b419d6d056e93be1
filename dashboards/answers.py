"""The answers of a Prometheus to the queries of a panel, as Grafana shows them: series with names, or lines of a table.

Tests and the pictures of the dashboards use it; Grafana does not.
"""

from __future__ import annotations

import json
import math
import re
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dashboards.panels import Column, Panel
from dashboards.promql import MIN_STEP, PRICE, RATE_INTERVAL

LETTERS = "ABCDEFGH"
_LABEL = re.compile(r"\{\{(\w+)\}\}")
_SECONDS = 60.0
"""Maximum duration of a query."""
Labels = Mapping[str, str]
Line = dict[str, Any]
"""A line of a table: text or number by heading. A cell without a value is absent."""


@dataclass(frozen=True, slots=True)
class Series:
    """A series that a panel shows."""

    name: str
    labels: Labels
    points: Sequence[tuple[float, float]]
    """Time in seconds and value. An instant query has one point."""

    @property
    def last(self) -> float:
        """Return the last value."""
        return self.points[-1][1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A Prometheus, with the values of the dashboard's variables and its time range."""

    url: str
    start: float
    end: float
    step: float
    """Seconds between two points of a graph."""
    scrape_interval: float
    variables: Mapping[str, str]
    """Regular expression by name of the variable; an absent one selects all, or has its default."""

    def answers(self, panel: Panel) -> list[list[Series]]:
        """Return the series of each query of a panel. Raise HTTPError for an invalid query."""
        return [self._ask(panel, query.expr, query.legend) for query in panel.queries]

    def filled(self, expr: str) -> str:
        """Return a query with the values of the variables, as Grafana sends it."""
        interval = f"{max(4 * self.scrape_interval, max(self.step, MIN_STEP) + self.scrape_interval):g}s"
        expr = expr.replace(RATE_INTERVAL, interval)
        chosen = {"price": PRICE, "__range": f"{self.end - self.start:.0f}s", **self.variables}
        return re.sub(r"\$([a-z_]+)", lambda found: chosen.get(found[1], ".*"), expr)

    def _ask(self, panel: Panel, expr: str, legend: str) -> list[Series]:
        times = {"time": self.end} if panel.instant else {"start": self.start, "end": self.end, "step": self.step}
        path = "query" if panel.instant else "query_range"
        form = urllib.parse.urlencode({"query": self.filled(expr), **times}).encode()
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}", form, timeout=_SECONDS) as answer:
            results = json.load(answer)["data"]["result"]
        return [_series(result, legend) for result in results]


def _series(result: Any, legend: str) -> Series:
    labels = result["metric"]
    name = _LABEL.sub(lambda found: labels.get(found[1], ""), legend)
    points = result.get("values") or [result["value"]]
    return Series(name, labels, [(float(at), float(value)) for at, value in points])


def lines(panel: Panel, answers: Sequence[Sequence[Series]]) -> list[Line]:
    """Return the lines of a table: results that agree in the labels of all queries are one, as in Grafana."""
    names = [{name for series in found for name in series.labels} for found in answers if found]
    common = set.intersection(*names) - {"__name__"} if names else set()
    merged: list[tuple[dict[str, str], dict[str, float]]] = []
    for letter, found in zip(LETTERS, answers, strict=False):
        for series in found:
            lines = (line for line in merged if letter not in line[1] and _agree(line[0], series.labels, common))
            if (line := next(lines, None)) is None:
                merged.append(line := ({}, {}))
            line[0].update(series.labels)
            line[1][letter] = series.last
    shown = [_line(panel.columns, labels, values) for labels, values in merged]
    sign = 1 if panel.lowest_first else -1
    return sorted(shown, key=lambda line: sign * line.get(panel.sort, 0.0)) if panel.sort else shown


def _agree(one: Labels, other: Labels, names: Iterable[str]) -> bool:
    return all(one.get(name, "") == other.get(name, "") for name in names)


def _line(columns: Sequence[Column], labels: Labels, values: Mapping[str, float]) -> Line:
    cells: Mapping[str, Any] = {**labels, **values}
    shown = {column.heading: cells[column.source] for column in columns if column.source in cells}
    return {heading: cell for heading, cell in shown.items() if not (isinstance(cell, float) and math.isnan(cell))}


def pivot(panel: Panel, answers: Sequence[Sequence[Series]]) -> dict[str, dict[str, float]]:
    """Return the values of a matrix by the labels of its row and of its column."""
    rows, columns = panel.columns
    cells: dict[str, dict[str, float]] = {}
    for series in answers[0]:
        cells.setdefault(series.labels[rows.source], {})[series.labels[columns.source]] = series.last
    return cells


def flat(answers: Sequence[Sequence[Series]]) -> Iterator[Series]:
    """Yield the series of all queries."""
    for found in answers:
        yield from found
