"""Renders the metrics of a Report as a page in Prometheus's text format 0.0.4, at most once per Report."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import generate_latest

from gpumon.model.infiniband import InfinibandLink, InfinibandPort
from gpumon.model.nvlink import C2cLink, Nvlink, NvlinkPeer, Platform
from gpumon.model.reading import (
    INFO_HELP,
    LINKS,
    METRICS,
    Labels,
    Page,
    Row,
    Table,
    info_page,
    labels_of,
    metric_type,
    rows,
)
from gpumon.state.report import Report
from gpumon.state.sections import TABLES
from gpumon.state.sections import tables as tables_of

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
CACHED = (Nvlink, NvlinkPeer, C2cLink, Platform, InfinibandLink, InfinibandPort)
"""Tables that rarely change: their rendered lines are reused while the Report has the same table object."""
EXACT = 1e15
"""Whole numbers below this value are written without a fraction, because a float represents them exactly."""
GZIP_LEVEL = 1
"""Compression level. Level 9 takes twelve times as long, and makes the page only a third smaller."""


SPARE = 64
"""Number of line prefixes, beyond twice a row's current number of label values, that the row's cache may hold."""

_Place = tuple[type[Table], Labels]


@dataclass(frozen=True, slots=True)
class Exposition:
    """A page as bytes, plain and compressed with gzip."""

    raw: bytes
    gzipped: bytes


class Renderer:
    """Renders one page. It caches the latest page, the name and labels of series, and the lines of CACHED tables."""

    def __init__(
        self, latest: Callable[[], Report], page: Page = METRICS, other_families: Callable[[], bytes] = bytes
    ) -> None:
        """Create the renderer. `other_families` returns rendered families that are not of the Report."""
        self._latest, self._path, self._other_families = latest, page, other_families
        self._tables = frozenset(table for table in TABLES if _families(table, page))
        self._prefixes: dict[_Place, dict[str, dict[str, str]]] = {}
        self._cached_lines: dict[_Place, tuple[Table, Mapping[str, list[str]]]] = {}
        self._report: Report | None = None
        self._page = Exposition(b"", b"")

    def exposition(self) -> Exposition:
        """Return the page of the latest Report. Render it only if the cached page is of an earlier Report."""
        report = self._latest()
        if report is not self._report:
            raw = self.render(report).encode() + self._other_families()
            self._page, self._report = Exposition(raw, gzip.compress(raw, GZIP_LEVEL, mtime=0)), report
        return self._page

    def render(self, report: Report) -> str:
        families: dict[str, list[str]] = {name: [] for table in TABLES for name in _families(table, self._path)}
        tables = [(table, own, (type(table), own)) for table, own in tables_of(report) if type(table) in self._tables]
        detailed = report.detailed or self._path is LINKS
        for gone in self._prefixes.keys() - {place for _, _, place in tables}:  # such as a deleted MIG instance
            del self._prefixes[gone]
            self._cached_lines.pop(gone, None)
        for table, own, place in tables:
            if not isinstance(table, CACHED):
                self._series(table, own, place, families, detailed=detailed)
                continue
            cached_table, lines = self._cached_lines.get(place, (None, {}))
            if cached_table is not table:
                own_families: dict[str, list[str]] = {name: [] for name in _families(place[0], self._path)}
                self._series(table, own, place, own_families, detailed=detailed)
                lines = {name: own_lines for name, own_lines in own_families.items() if own_lines}
                self._cached_lines[place] = (table, lines)
            for name, own_lines in lines.items():
                families[name] += own_lines
        return "".join(_HEADS[name] + "".join(lines) for name, lines in families.items() if lines)

    def _series(
        self, table: Table, own: Labels, place: _Place, families: dict[str, list[str]], *, detailed: bool
    ) -> None:
        prefixes = self._prefixes.setdefault(place, {})
        has_identity = False
        for name, row, hidden in _exported_rows(type(table), self._path, detailed=detailed):
            value = getattr(table, name)
            if value is None:
                continue
            if row.identity:
                has_identity = has_identity or bool(value)
                continue
            row_prefixes = prefixes.setdefault(name, {})
            lines = families[table.PREFIX + name]
            values = value if row.labels else {"": value}
            if len(row_prefixes) > 2 * len(values) + SPARE:
                row_prefixes.clear()  # rows with changing label values, such as processes, would grow
            for key, number in values.items():
                if key in hidden or not (number or row.zeros):
                    continue
                if key not in row_prefixes:
                    labels = own + labels_of(row.labels, key) if row.labels else own
                    row_prefixes[key] = series_prefix(table.PREFIX + name, labels)
                lines.append(f"{row_prefixes[key]}{number_text(number)}\n")
        if has_identity and info_page(type(table)) is self._path:
            identities = ((name, getattr(table, name)) for name, row in rows(type(table)).items() if row.identity)
            labels = own + tuple((name, str(value or "")) for name, value in identities)
            families[f"{table.PREFIX}info"].append(f"{series_prefix(f'{table.PREFIX}info', labels)}1\n")


@cache
def _exported_rows(table: type[Table], page: Page, *, detailed: bool) -> tuple[tuple[str, Row, frozenset[str]], ...]:
    """Return, for each row that a page exports: its name, the row, and the label values whose series are omitted."""
    return tuple(
        (name, row, frozenset(() if detailed or isinstance(row.detail, bool) else row.detail))
        for name, row in rows(table).items()
        if row.page is page and (detailed or row.detail is not True)
    )


@cache
def _families(table: type[Table], page: Page) -> Mapping[str, str]:
    """Return the help text of each metric of a table on a page, by metric name, in the order of the page."""
    families = {}
    for name, row in rows(table).items():
        if row.page is not page:
            continue
        if row.identity:
            families[f"{table.PREFIX}info"] = INFO_HELP
        else:
            families[table.PREFIX + name] = row.help
    return families


def head(name: str, text: str, kind: str = "") -> str:
    """Return the HELP and TYPE lines of a metric. If `kind` is empty, the type is derived from the name."""
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n")
    return f"# HELP {name} {escaped}\n# TYPE {name} {kind or metric_type(name)}\n"


_HEADS = {name: head(name, text) for page in Page for table in TABLES for name, text in _families(table, page).items()}


def series_prefix(name: str, labels: Labels) -> str:
    """Return the name and the labels of a series as text, with a space at the end, after which the value follows."""
    if not labels:
        return f"{name} "
    escaped = ((label, value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")) for label, value in labels)
    pairs = ",".join(f'{label}="{value}"' for label, value in escaped)
    return f"{name}{{{pairs}}} "


def number_text(value: float) -> str:
    """Return the value of a sample as text; a whole number below EXACT has no fraction."""
    whole = int(value) if abs(value) < EXACT else None
    return str(whole) if whole == value else repr(float(value))


_REGISTRY = CollectorRegistry()
ProcessCollector(registry=_REGISTRY)
PlatformCollector(registry=_REGISTRY)
GCCollector(registry=_REGISTRY)


def daemon_process() -> bytes:
    """Return the current process_*, python_info and python_gc_* families in text format 0.0.4."""
    return generate_latest(_REGISTRY)
