"""Generates the sections of docs/dcgm.md that come from code."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Mapping

from gpumon import DEFAULT_PORT
from gpumon.model.gpu import Gpu
from gpumon.model.reading import rows
from gpumon.outputs.dcgm import DEFAULTS, FIELDS, WATCHES, DcgmField, DcgmPage
from scripts.simulated_reports import report_of


def sections() -> Mapping[str, str]:
    """Return the text of each section by its name in the page."""
    further = (field for field in FIELDS if field not in DEFAULTS)
    watches = ((f"`{watch}`", ", ".join(subjects)) for watch, subjects in WATCHES.items())
    head = ("up to 4.8", "from 4.9 on", "gpumon")
    return {
        "size": _size(),
        "defaults": _table(head, map(_cells, DEFAULTS)),
        "further": _table(head, map(_cells, further)),
        "watches": _table(("`health_watch`", "checks"), watches),
    }


def _size() -> str:
    """Return the size of the page of a simulated node."""
    report = report_of("h100x8")
    page = DcgmPage(host="gpu-17").render(report)
    count = sum(not line.startswith("#") for line in page.splitlines())
    size, packed = (len(content) / 1000 for content in (page.encode(), gzip.compress(page.encode())))
    return (
        "A node with eight H100 (`gpumon serve --simulate h100x8`) has "
        f"{count} series on this page, {count // len(report.gpus)} for each GPU, in {size:.0f} kB, or {packed:.0f} kB\n"
        f"compressed (`curl -s localhost:{DEFAULT_PORT}/metrics/dcgm | grep -vc '^#'` counts them).\n"
    )


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
    return f"`gpumon_gpu_{name}{label}`" + (", detail" if row.needs_detail(key) else "")


def _table(head: tuple[str, ...], lines: Iterable[Iterable[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, ("---",) * len(head), *lines))
