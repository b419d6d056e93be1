"""Report -> the text format of Prometheus, 0.0.4. Prefixes are built once a series, the page once a Report."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from gpumon.model.fabric import Fabric, Platform
from gpumon.model.gpu import Gpu
from gpumon.model.health_metrics import HealthMetrics
from gpumon.model.infiniband import InfinibandLink, InfinibandPort
from gpumon.model.mig import Mig
from gpumon.model.node import Build, Driver, Node
from gpumon.model.nvlink import C2cLink, Nvlink, NvlinkPeer
from gpumon.model.reading import INFO_HELP, Labels, Row, Table, labels_of, metric_type, rows
from gpumon.probe.core.metrics import AllReduce
from gpumon.state.report import Report

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
TABLES: tuple[type[Table], ...] = (
    Build,
    Driver,
    Node,
    HealthMetrics,
    Gpu,
    Mig,
    Fabric,
    Platform,
    Nvlink,
    NvlinkPeer,
    C2cLink,
    InfinibandLink,
    InfinibandPort,
    AllReduce,
)
"""In the order of the page."""
KEPT = (Nvlink, NvlinkPeer, C2cLink, Platform, InfinibandLink, InfinibandPort)
"""Tables of which most Reports have the same objects as the one before: their lines are kept."""
EXACT = 1e15
"""Below this every digit of a float is exact, and a whole number is written as one."""
GZIP_LEVEL = 1
"""The client library's 9 costs twelve times as much for a page a third smaller."""


SPARE = 64
"""Prefixes kept of label values that are gone, before they are all made anew."""

_Place = tuple[type[Table], Labels]


@dataclass(frozen=True, slots=True)
class Exposition:
    """One page, in both encodings."""

    raw: bytes
    gzipped: bytes


class Renderer:
    """Remembers the page of the last Report, and of each of its series the line up to the value."""

    def __init__(self, latest: Callable[[], Report]) -> None:
        self._latest = latest
        self._prefixes: dict[_Place, dict[str, dict[str, str]]] = {}
        self._kept: dict[_Place, tuple[Table, Mapping[str, list[str]]]] = {}
        self._report: Report | None = None
        self._page = Exposition(b"", b"")

    def exposition(self) -> Exposition:
        """The page of the latest Report."""
        report = self._latest()
        if report is not self._report:
            raw = self.render(report).encode()
            self._page, self._report = Exposition(raw, gzip.compress(raw, GZIP_LEVEL, mtime=0)), report
        return self._page

    def render(self, report: Report) -> str:
        """The page as text."""
        families: dict[str, list[str]] = {name: [] for table in TABLES for name in _families(table)}
        tables = [(table, own, (type(table), own)) for table, own in report.tables()]
        self._forget({place for _, _, place in tables})
        for table, own, place in tables:
            if isinstance(table, KEPT):
                for name, lines in self._keep(table, own, place, detailed=report.detailed).items():
                    families[name] += lines
            else:
                self._series(table, own, place, families, detailed=report.detailed)
        return "".join(_HEADS[name] + "".join(lines) for name, lines in families.items() if lines)

    def _forget(self, places: set[_Place]) -> None:
        """What was remembered of tables that are gone: MIG instances, ports, GPUs."""
        for gone in self._prefixes.keys() - places:
            del self._prefixes[gone]
            self._kept.pop(gone, None)

    def _keep(self, table: Table, own: Labels, place: _Place, *, detailed: bool) -> Mapping[str, list[str]]:
        """Lines of a table that is seldom read and often asked for."""
        known, lines = self._kept.get(place, (None, {}))
        if known is not table:
            families: dict[str, list[str]] = {name: [] for name in _families(type(table))}
            self._series(table, own, place, families, detailed=detailed)
            lines = {name: found for name, found in families.items() if found}
            self._kept[place] = (table, lines)
        return lines

    def _series(
        self, table: Table, own: Labels, place: _Place, families: dict[str, list[str]], *, detailed: bool
    ) -> None:
        prefixes = self._prefixes.setdefault(place, {})
        named = False
        for name, row, hidden in _exported(type(table), detailed=detailed):
            value = getattr(table, name)
            if value is None:
                continue
            if row.identity:
                named = named or bool(value)
                continue
            known = prefixes.setdefault(name, {})
            lines = families[table.PREFIX + name]
            values = value if row.labels else {"": value}
            if len(known) > 2 * len(values) + SPARE:
                known.clear()  # processes come and go
            for key, one in values.items():
                if key in hidden:
                    continue
                if key not in known:
                    known[key] = _prefix(table.PREFIX + name, own, row, key)
                lines.append(f"{known[key]}{_number(one)}\n")
        if named:
            families[f"{table.PREFIX}info"].append(f"{_info(table, own)}1\n")


@cache
def _exported(table: type[Table], *, detailed: bool) -> tuple[tuple[str, Row, frozenset[str]], ...]:
    """The rows that are shown, each with the values of its labels that are not."""
    return tuple(
        (name, row, frozenset(() if detailed or isinstance(row.detail, bool) else row.detail))
        for name, row in rows(table).items()
        if detailed or row.detail is not True
    )


def _families(table: type[Table]) -> Mapping[str, str]:
    """Names and help texts of a table's metrics, in order."""
    found = {}
    for name, row in rows(table).items():
        if row.identity:
            found[f"{table.PREFIX}info"] = INFO_HELP
        else:
            found[table.PREFIX + name] = row.help
    return found


def _head(name: str, text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n")
    return f"# HELP {name} {escaped}\n# TYPE {name} {metric_type(name)}\n"


_HEADS = {name: _head(name, text) for table in TABLES for name, text in _families(table).items()}


def _prefix(name: str, own: Labels, row: Row, key: str) -> str:
    return _named(name, own + labels_of(row, key) if row.labels else own)


def _info(table: Table, own: Labels) -> str:
    named = tuple((name, str(getattr(table, name) or "")) for name, row in rows(type(table)).items() if row.identity)
    return _named(f"{table.PREFIX}info", own + named)


def _named(name: str, labels: Labels) -> str:
    if not labels:
        return f"{name} "
    pairs = ",".join(f'{label}="{_escaped(value)}"' for label, value in labels)
    return f"{name}{{{pairs}}} "


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    whole = int(value) if abs(value) < EXACT else None
    return str(whole) if whole == value else repr(float(value))
