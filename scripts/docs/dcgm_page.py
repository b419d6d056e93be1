"""Generates the sections of docs/dcgm.md that come from code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from gpumon.model.gpu import Gpu
from gpumon.model.reading import rows
from gpumon.outputs.dcgm_fields import DEFAULTS, FIELDS, DcgmField
from gpumon.outputs.dcgm_values import WATCHES


def sections() -> Mapping[str, str]:
    """Return the text of each section by its name in the page."""
    further = (field for field in FIELDS if field not in DEFAULTS)
    watches = ((f"`{watch}`", ", ".join(subjects)) for watch, subjects in WATCHES.items())
    head = ("up to 4.8", "from 4.9 on", "gpumon")
    return {
        "defaults": _table(head, map(_cells, DEFAULTS)),
        "further": _table(head, map(_cells, further)),
        "watches": _table(("`health_watch`", "checks"), watches),
    }


def _cells(field: DcgmField) -> Iterator[str]:
    yield _name(field.legacy, field.unit)
    yield "same" if field.canonical == field.legacy else _name(field.canonical, "")
    yield _source(field)


def _name(name: str, unit: str) -> str:
    return f"`{name}`" + (f" ({unit})" if unit else "")


def _source(field: DcgmField) -> str:
    """Return the metric of gpumon with the same value, or what the value is."""
    name, _, key = field.source.partition(":")
    if not name:
        return field.help
    row = rows(Gpu)[name]
    label = f'{{{row.labels[0]}="{key}"}}' if key else ""
    return f"`gpumon_gpu_{name}{label}`" + (", detail" if row.hidden(key) else "")


def _table(head: tuple[str, ...], lines: Iterable[Iterable[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, ("---",) * len(head), *lines))
