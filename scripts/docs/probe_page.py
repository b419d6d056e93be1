"""Generates the sections of docs/probe.md that come from code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from gpumon.probe.core.probes import GIB, MIB
from gpumon.probe.core.published_figures import TABLE, Published

_USUAL_SOURCE = "stas00/ml-engineering, network/README.md"
"""Source that the page states above the table."""


def sections() -> Mapping[str, str]:
    """Return the text of each section by its name in the page."""
    return {"figures": _table(("GPU", "ranks", "algorithm", "GB/s at size", "source"), _figures())}


def _figures() -> Iterator[tuple[str, ...]]:
    """Yield one row for the figures of one source about the same GPU, ranks and algorithm."""
    for (names, ranks, algorithm, source), rows in groupby(
        sorted(TABLE, key=_series), lambda row: (row.names, row.ranks, row.algorithm, row.source)
    ):
        figures = ", ".join(f"{row.busbw / 1e9:g} at {_size(row.bytes)}" for row in rows)
        yield f"`{_model(names)}`", str(ranks), algorithm, figures, "" if source == _USUAL_SOURCE else source


def _series(row: Published) -> tuple[str, int, str, int]:
    return row.names, row.ranks, row.algorithm, row.bytes


def _model(names: str) -> str:
    return re.sub(r"\\d\+", "*", names).replace(".*", "*")


def _size(count: int) -> str:
    return f"{count // GIB} GiB" if count >= GIB else f"{count // MIB} MiB"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, ("---",) * len(head), *rows))
