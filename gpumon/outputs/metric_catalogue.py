"""The catalogue of all metrics, built from the metric tables, for `gpumon metrics` and docs/metrics.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpumon.model.reading import (
    INFO_HELP,
    Agent,
    Call,
    Difference,
    Field,
    Gpm,
    Integral,
    LinkCall,
    LinkField,
    Page,
    Row,
    Source,
    Sysfs,
    Table,
    metric_type,
    primary_sources,
    rows,
)
from gpumon.state.sections import TABLES

UNITS = (
    ("_timestamp_seconds", "seconds since the epoch"),
    ("_bytes_per_second", "bytes per second"),
    ("_seconds", "seconds"),
    ("_bytes", "bytes"),
    ("_celsius", "degrees Celsius"),
    ("_watts", "watts"),
    ("_joules", "joules"),
    ("_hertz", "hertz"),
    ("baseline_ratio", "ratio, 1 is as expected"),
    ("expected_ratio", "ratio, 1 is as expected"),
    ("_ratio", "ratio, 0 to 1"),
)
"""Unit of a metric by suffix of its name; the first match applies. A metric without a match is a plain number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """A metric that the agent exports, as `gpumon metrics` and docs/metrics.md describe it."""

    name: str
    type: str
    unit: str
    labels: tuple[str, ...]
    help: str
    sources: tuple[str, ...]
    """Sources of the value: NVML functions and fields, sysfs files, the row that is integrated, or `the agent`."""
    tier: str
    """How often the value is read: fast, state, slow, rare or once; empty if the agent itself provides it."""
    note: str
    detail: bool | tuple[str, ...]
    """Whether /metrics exports it only with the setting DETAILED; a tuple has the label values that need it."""
    page: str
    zeros: bool = True
    """False if the page has no series for a value of 0."""


def catalogue() -> list[CatalogueEntry]:
    return [entry for table in TABLES for entry in entries_of(table)]


def unit(name: str) -> str:
    """Return the unit of the metric with this name; an empty string for a plain number."""
    bare = name.removesuffix("_total")
    return next((name for suffix, name in UNITS if bare.endswith(suffix)), "")


DETAILED = "metrics.detailed"
"""Name of the setting that adds the detailed metrics to /metrics."""


def text(entries: Iterable[CatalogueEntry]) -> str:
    """Return catalogue entries as text for a terminal: a line with name and labels, and one with all other fields."""
    lines = []
    for entry in entries:
        labels = f"{{{', '.join(entry.labels)}}}" if entry.labels else ""
        facts = ", ".join(filter(None, (entry.type, entry.unit, entry.tier, "; ".join(entry.sources))))
        lines += [entry.name + labels, f"    {entry.help}{remark(entry)} [{facts}]"]
    return "\n".join(lines) + "\n"


def entries_of(table: type[Table]) -> Iterator[CatalogueEntry]:
    """Yield an entry for each metric of one table. The info metric comes first, if the table has one."""
    identities = {name: row for name, row in rows(table).items() if row.identity}
    if identities:
        yield _info(table, identities)
    for name, row in rows(table).items():
        if not row.identity:
            yield CatalogueEntry(
                name=table.PREFIX + name,
                type=metric_type(name),
                unit=unit(name),
                labels=(*table.LABELS, *row.labels),
                help=row.help,
                sources=tuple(dict.fromkeys(_source_names(row.source))),
                tier="" if isinstance(row.source, Agent) else row.every.name.lower(),
                note=row.note,
                detail=row.detail if row.page is Page.METRICS else False,
                page=row.page.value,
                zeros=row.zeros,
            )


def _info(table: type[Table], identities: dict[str, Row]) -> CatalogueEntry:
    return CatalogueEntry(
        name=f"{table.PREFIX}info",
        type="gauge",
        unit="",
        labels=(*table.LABELS, *identities),
        help=INFO_HELP,
        sources=tuple(dict.fromkeys(name for row in identities.values() for name in _source_names(row.source))),
        tier="" if all(isinstance(row.source, Agent) for row in identities.values()) else "once",
        note=" ".join(f"`{name}`: {row.help}" for name, row in identities.items()),
        detail=False,
        page=next(row.page.value for row in identities.values()),
    )


def _source_names(source: Source) -> Iterator[str]:
    """Yield the names of the parts of a source, such as NVML functions, fields and sysfs files, the preferred first."""
    for part in primary_sources(source):
        match part:
            case Call(name=name, attribute=attribute) | LinkCall(name=name, attribute=attribute):
                yield f"nvmlDeviceGet{name}" + (f".{attribute}" if isinstance(attribute, str) else "")
            case Field(name=name) | LinkField(name=name):
                yield f"field {name}"
            case Difference(total=total, part=subtrahend):
                yield f"field {total.name} - field {subtrahend.name}"
            case Gpm(name=name):
                yield f"GPM {name}"
            case Integral(of=of):
                yield f"integral of {of}"
            case Sysfs(files=files):
                yield from (f"sysfs {name}" for name in files)
            case _:
                yield AGENT_SOURCE


AGENT_SOURCE = "the agent"


def remark(entry: CatalogueEntry) -> str:
    """Return a text about a metric: its note, its page if that is not /metrics, and which series may be absent."""
    page = "" if entry.page == Page.METRICS.value else f"On {entry.page}."
    zeros = "" if entry.zeros else "No series for 0."
    detail = "Detail." if entry.detail else ""
    if isinstance(entry.detail, tuple):
        detail = f"Detail: {', '.join(entry.detail)}."
    return "".join(f" {text}" for text in (entry.note, page, zeros, detail) if text)
