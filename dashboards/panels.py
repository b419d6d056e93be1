"""The panels of the dashboards as values: what each asks of Prometheus, and how the answer is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Words = Mapping[float, tuple[str, str]]
"""Text and color that replace a value."""
Colors = Mapping[float | None, str]
"""Color by the value at which it begins. The first begins at None."""

PLAIN: Colors = {None: "text"}
LEVELS: Words = {0: ("ok", "green"), 1: ("unknown", "purple"), 2: ("warn", "orange"), 3: ("fail", "red")}
"""The verdict levels."""
P_STATES: Words = {
    state: (f"P{state}", "green" if state == 0 else "yellow" if state < 8 else "blue") for state in range(16)
}
"""Performance states."""
NO_ANSWER = -1
"""Value of what does not answer, below those of the verdict levels."""
YES_NO: Words = {0: ("no", "red"), 1: ("yes", "green")}
NOT_KNOWN = "n/a"
"""Text of a panel without series. A good answer is a series too, so that it differs from no answer."""
OTHERS = "others"
"""Name of the row or line that states that nothing else occurred."""
NONE: tuple[str, str] = ("none", "transparent")
NODE, GPU, UUID, CLUSTER, JOB = "node", "GPU", "uuid", "cluster", "job"
NEAREST_GPU = "nearest GPU"
"""Headings of columns whose cells link to the dashboards of that node, GPU or job, or are parts of such a link."""
REASON = "reason"
"""Heading of a column whose text is wrapped."""


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL expression of a panel."""

    expr: str
    legend: str = ""
    """Name of each series; {{label}} is a label of the result."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: a label of the results, or the values of one query."""

    source: str
    """Name of the label; for values the letter of the query, A to H."""
    heading: str
    unit: str = "none"
    words: Words = field(default_factory=dict)
    colors: Colors = field(default_factory=lambda: PLAIN)

    @property
    def is_value(self) -> bool:
        """Return whether the column shows the values of a query."""
        return len(self.source) == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A panel of a dashboard."""

    kind: str
    """stat, bars, graph, timeline, table or matrix."""
    title: str
    """The question that the panel answers."""
    description: str
    queries: Sequence[Query]
    unit: str = "none"
    """Unit id of Grafana."""
    width: int = 12
    """Columns of the grid, which has 24."""
    height: int = 8
    colors: Colors = field(default_factory=lambda: PLAIN)
    words: Words = field(default_factory=dict)
    minimum: float | None = None
    maximum: float | None = None
    increments: bool = False
    """True if a graph shows bars, one for each increase between two points."""
    columns: Sequence[Column] = ()
    """Columns of a table, from left to right. A matrix has two: the labels of its rows and of its columns."""
    sort: str = ""
    """Heading of the column by which a table or matrix is sorted, highest value first."""
    lowest_first: bool = False

    @property
    def instant(self) -> bool:
        """Return whether the queries are instant. Graphs and timelines query the time range of the dashboard."""
        return self.kind not in {"graph", "timeline"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A row of a dashboard, with its panels from left to right."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """A dashboard. Its uid and the names of its variables do not change, because bookmarks contain them."""

    uid: str
    title: str
    description: str
    sections: Sequence[Section]
    one_node: bool = False
    """True if exactly one node is selected."""
    one_gpu: bool = False
    """True if exactly one GPU is selected."""
    one_job: bool = False
    """True if there is a variable for the id of a job, of which exactly one is selected."""
    priced: bool = False
    """True if there is a variable for the price of a GPU hour."""

    @property
    def panels(self) -> list[Panel]:
        """Return the panels of all sections."""
        return [panel for section in self.sections for panel in section.panels]


def stat(title: str, description: str, expr: str, **more: Any) -> Panel:
    """Return a panel with one number."""
    return Panel(
        **{"width": 4, "height": 4} | more, kind="stat", title=title, description=description, queries=[Query(expr)]
    )


def bars(title: str, description: str, queries: Mapping[str, str], **more: Any) -> Panel:
    """Return a panel with one bar for each query, by its name."""
    asked = [Query(expr, name) for name, expr in queries.items()]
    return Panel(**more, kind="bars", title=title, description=description, queries=asked)


def graph(title: str, description: str, queries: Mapping[str, str], **more: Any) -> Panel:
    """Return a graph. `queries`: expressions by the legend of their series."""
    asked = [Query(expr, legend) for legend, expr in queries.items()]
    return Panel(**more, kind="graph", title=title, description=description, queries=asked)


def increments(title: str, description: str, expr: str, legend: str, known: str, **more: Any) -> Panel:
    """Return a graph with a bar for each increase, and 0 for all others while `known` has series."""
    return graph(
        title, description, {legend: expr, OTHERS: f"0 * group({known})"}, **{"minimum": 0} | more, increments=True
    )


def timeline(
    title: str, description: str, expr: str, legend: str, words: Words, *, known: str = "", **more: Any
) -> Panel:
    """Return a timeline of states with a row for each series, and one with 0 for all others while `known` has some."""
    asked = [Query(expr, legend), *([Query(f"0 * group({known})", OTHERS)] if known else [])]
    return Panel(**more, kind="timeline", title=title, description=description, queries=asked, words=words)


def table(title: str, description: str, queries: Sequence[str], columns: Sequence[Column], **more: Any) -> Panel:
    """Return a table of the current values. Results that agree in the labels they share are one line.

    A table with nodes has their clusters too, which may be absent.
    """
    if any(column.source == "instance" for column in columns):
        columns = [*columns, Column(CLUSTER, CLUSTER)]
    asked = [Query(expr) for expr in queries]
    return Panel(**more, kind="table", title=title, description=description, queries=asked, columns=columns)


def matrix(title: str, description: str, expr: str, rows: Column, *, columns: str, words: Words, **more: Any) -> Panel:
    """Return a table with a line for each value of one label, and a column for each value of another."""
    both = (rows, Column(columns, columns))
    asked = [Query(expr)]
    return Panel(**more, kind="matrix", title=title, description=description, queries=asked, columns=both, words=words)
