"""What the page shows of a run of the probe: its sizes, what they are compared with, and which pairs are slow."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from gpumon.outputs.probe_history import comparison, largest
from gpumon.outputs.probe_table import compared
from gpumon.outputs.responses.base import Document
from gpumon.outputs.words import bandwidth, duration, seconds_between, share
from gpumon.probe.core.locate import SLOW
from gpumon.probe.core.probes import ALL_REDUCE, PROBES
from gpumon.probe.core.result import Comparison
from gpumon.server.view import Bar

MOST_RANKS = 16
"""Of more, a matrix says nothing at a glance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One way of measuring."""

    title: str
    sizes: tuple[Document, ...]
    """Measurements, the largest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What two ranks exchanged alone."""

    text: str
    tone: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One rank with every other."""

    name: str
    cells: tuple[Cell, ...]


def groups(run: Document) -> list[Group]:
    """A title only where there are several."""
    kinds = {one["collective"] for one in run["measurements"]}, {one["dtype"] for one in run["measurements"]}
    ordered = sorted(run["measurements"], key=lambda one: (*_way(one), -one["bytes"]))
    found = [(way, tuple(sizes)) for way, sizes in groupby(ordered, _way)]
    return [Group(title=_named(*way, kinds) if len(found) > 1 else "", sizes=sizes) for way, sizes in found]


def ratio(run: Document, measurement: Document) -> tuple[str, str]:
    """Share of this host's own median, and its tone; nothing where there is none."""
    one = comparison(run, measurement)
    if one is None or not one["baseline"]:
        return "", ""
    return share(one["busbw"] / one["baseline"]), "warning" if one["low"] else ""


def comparisons(run: Document) -> list[tuple[str, str]]:
    """Sentences, with their tone."""
    return [(f"{compared(Comparison(**one))}.", "warning" if one["low"] else "") for one in run["comparisons"]]


def surroundings(run: Document) -> list[str]:
    """Under which conditions it ran."""
    conditions = run["conditions"]
    on = [conditions["model"], conditions["driver"] and f"driver {conditions['driver']}"]
    return [*filter(None, on), *(f"{name} {version}" for name, version in run["versions"].items())]


def progress(probe: Document) -> Bar:
    """How far the run in progress is."""
    one = probe["progress"] or {"words": "starting", "ratio": 0.0}
    return Bar(text=f"A run is in progress: {one['words']}", limit=share(one["ratio"]), ratio=one["ratio"])


def pairs(run: Document, report: Document) -> list[Line]:
    """A line and a column a rank, named by its GPU; nothing where no pairs were tried."""
    found = {tuple(one["ranks"]): one for one in (run["location"] or {"pairs": []})["pairs"]}
    ranks = sorted({rank for both in found for rank in both})
    if not 2 < len(ranks) <= MOST_RANKS:
        return []
    usual = statistics.median(sorted((one["bandwidth"] for one in found.values()), reverse=True)[: -(-len(found) // 2)])
    names = [_rank(rank, run, report) for rank in ranks]
    return [
        Line(name=name, cells=tuple(_cells(row, ranks, names, found, usual)))
        for row, name in zip(ranks, names, strict=True)
    ]


def others(report: Document) -> list[str]:
    """The last run of each probe that runs on request, as a sentence."""
    now, sentences = report["node"]["time"], []
    for name, probe in PROBES.items():
        run = next((one for one in report["probes"] if one["probe"] == name != ALL_REDUCE), None)
        if run is not None:
            figures = [bandwidth(one["busbw_bytes_per_second"]) for one in largest(run).values()][:1]
            ended = f"{run['outcome']}{' (' + run['reason'] + ')' if run['reason'] else ''}"
            ago = duration(seconds_between(run["started"], now))
            sentences.append(f"{probe.title}: {', '.join([ended, *figures])}, {ago} ago")
    return sentences


def _way(one: Document) -> tuple[str, str, str]:
    return one["collective"], one["algorithm"], one["dtype"]


def _named(collective: str, algorithm: str, dtype: str, kinds: tuple[set[str], set[str]]) -> str:
    """Only what differs."""
    several, types = (len(kind) > 1 for kind in kinds)
    return ", ".join(part for part, said in ((collective, several), (algorithm, True), (dtype, types)) if said)


def _rank(rank: int, run: Document, report: Document) -> str:
    """By the GPU's number where the ranks ran on GPUs that are known."""
    gpus = run["conditions"]["gpus"]
    uuid = gpus[rank] if rank < len(gpus) else None
    return next((str(gpu["gpu"]) for gpu in report["gpus"] if gpu["uuid"] == uuid), f"r{rank}")


def _cells(
    row: int, ranks: list[int], names: list[str], found: dict[tuple[int, ...], Document], usual: float
) -> Iterator[Cell]:
    mine = names[ranks.index(row)]
    for column, name in zip(ranks, names, strict=True):
        one = found.get((min(row, column), max(row, column)))
        if one is None:
            yield Cell(text="")
            continue
        wrong, part = sum(one["wrong"]), one["bandwidth"] / usual
        tone = "down" if wrong else "erring" if part < SLOW else "ok"
        said = f"{mine} and {name}: {bandwidth(one['bandwidth'])}, {share(part)} of the usual"
        title = said + (f", {wrong} wrong elements" if wrong else "")
        yield Cell(text=f"{one['bandwidth'] / 1e9:.3g}{'!' if wrong else ''}", tone=tone, title=title)
