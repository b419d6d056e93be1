"""Generates the sections of docs/probe.md that come from code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from gpumon.probe.core.probes import GIB, MIB
from gpumon.probe.core.published_figures import TABLE


def sections() -> Mapping[str, str]:
    """Return the text of each section by its name in the page."""
    return {"figures": _table(("GPU", "ranks", "algorithm", "size", "busbw", "source"), _figures())}


def _figures() -> Iterator[tuple[str, ...]]:
    for one in TABLE:
        model = re.sub(r"\\d\+", "*", one.names).replace(".*", "*")
        yield f"`{model}`", str(one.ranks), one.algorithm, _size(one.bytes), f"{one.busbw / 1e9:g} GB/s", one.source


def _size(count: int) -> str:
    return f"{count // GIB} GiB" if count >= GIB else f"{count // MIB} MiB"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, ("---",) * len(head), *rows))
