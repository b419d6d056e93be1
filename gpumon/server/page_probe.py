"""Texts and tables for probe runs on the status page: measurements, comparisons, and bandwidths of GPU pairs."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import groupby

from gpumon.outputs.formatting import duration, quantity, seconds_between, share
from gpumon.outputs.probe_text import baseline_ratio, comparison, comparison_sentence, largest
from gpumon.outputs.responses.base import Document
from gpumon.probe.core.locate import SLOW
from gpumon.probe.core.probes import ALL_REDUCE, PROBES
from gpumon.probe.core.result import Comparison
from gpumon.server.page_overview import Bar

MAX_RANKS = 16
"""Maximum number of ranks for which the page shows a matrix of pairs. A larger matrix is not readable."""

_COMPARED = tuple(field.name for field in fields(Comparison))


@dataclass(frozen=True, slots=True, kw_only=True)
class PairCell:
    """Cell of the pair matrix: the bandwidth between two ranks. `tone` is its CSS class."""

    text: str
    tone: str = ""
    title: str = ""


def groups(run: Document) -> list[tuple[str, list[Document]]]:
    """Return a title and the measurements, largest size first, by operation, algorithm and data type."""
    ordered = sorted(run["measurements"], key=lambda item: (*_group_key(item), -item["size"]))
    by_key = {key: list(sizes) for key, sizes in groupby(ordered, _group_key)}
    operations, dtypes = {operation for operation, _, _ in by_key}, {dtype for _, _, dtype in by_key}
    titled = []
    for (operation, algorithm, dtype), sizes in by_key.items():
        parts = (operation if len(operations) > 1 else "", algorithm, dtype if len(dtypes) > 1 else "")
        titled.append((", ".join(filter(None, parts)) if len(by_key) > 1 else "", sizes))
    return titled


def ratio(run: Document, measurement: Document) -> tuple[str, str]:
    """Return a value as percentage of this host's median, and its CSS class; two empty strings without a median."""
    compared, part = comparison(run, measurement), baseline_ratio(run, measurement)
    if compared is None or part is None:
        return "", ""
    return share(part), "warning" if compared["below_reference"] else ""


def comparisons(run: Document) -> list[tuple[str, str]]:
    """Return, for each comparison of a run with reference values, a sentence and its CSS class ("" or "warning")."""
    return [
        (f"{comparison_sentence(item, run['probe'])}.", "warning" if item.below_reference else "")
        for item in (Comparison(**{name: item[name] for name in _COMPARED}) for item in run["comparisons"])
    ]


def conditions(run: Document) -> list[str]:
    """Return the conditions of a run as texts: GPU model, driver version and versions of other software."""
    gpu, driver = run["conditions"]["model"], run["conditions"]["driver"]
    return [
        *filter(None, (gpu, driver and f"driver {driver}")),
        *(f"{name} {version}" for name, version in run["versions"].items()),
    ]


def progress(probe: Document) -> Bar:
    current = probe["progress"] or {"message": "starting", "ratio": 0.0}
    ratio = current["ratio"]
    return Bar(text=f"A run is in progress: {current['message']}", limit=share(ratio), ratio=ratio)


def pairs(run: Document, report: Document) -> list[tuple[str, list[PairCell]]]:
    """Return name and cells of each row of the pair matrix; [] for fewer than 3 or more than MAX_RANKS ranks."""
    by_ranks = {tuple(pair["ranks"]): pair for pair in (run["location"] or {"pairs": []})["pairs"]}
    ranks = sorted({rank for both in by_ranks for rank in both})
    if not 2 < len(ranks) <= MAX_RANKS:
        return []
    ordered = sorted((pair["bandwidth_bytes_per_second"] for pair in by_ranks.values()), reverse=True)
    usual = statistics.median(ordered[: -(-len(ordered) // 2)])
    indexes = {gpu["uuid"]: str(gpu["gpu"]) for gpu in report["gpus"]}
    by_rank = {rank: indexes[uuid] for rank, uuid in enumerate(run["conditions"]["gpus"]) if uuid in indexes}
    names = [by_rank.get(rank, f"r{rank}") for rank in ranks]
    return [(name, list(_cells(row, ranks, names, by_ranks, usual))) for row, name in zip(ranks, names, strict=True)]


def requested_probes(report: Document) -> list[str]:
    """Return a list with one sentence for each probe that runs only on request and has run: about its last run."""
    now, sentences = report["node"]["time"], []
    for name, probe in PROBES.items():
        run = next((run for run in report["probes"] if run["probe"] == name != ALL_REDUCE), None)
        if run is not None:
            values = {name: quantity(item["value"], item["unit"]) for name, item in largest(run).items()}
            figures = [f"{name} {value}" for name, value in values.items()] if len(values) > 1 else values.values()
            ended = f"{run['outcome']}{' (' + run['reason'] + ')' if run['reason'] else ''}"
            ago = duration(seconds_between(run["started"], now))
            sentences.append(f"{probe.title}: {', '.join([ended, *figures])}, {ago} ago")
    return sentences


def _group_key(measurement: Document) -> tuple[str, str, str]:
    return measurement["operation"], measurement["algorithm"], measurement["dtype"]


def _cells(
    row: int, ranks: list[int], names: list[str], pairs: dict[tuple[int, ...], Document], usual: float
) -> Iterator[PairCell]:
    row_name = names[ranks.index(row)]
    for column, name in zip(ranks, names, strict=True):
        pair = pairs.get((min(row, column), max(row, column)))
        if pair is None:
            yield PairCell(text="")
            continue
        wrong, measured = sum(pair["wrong_elements"]), pair["bandwidth_bytes_per_second"]
        part = measured / usual
        tone = "down" if wrong else "erring" if part < SLOW else "ok"
        title = f"{row_name} and {name}: {quantity(measured, 'bytes_per_second')}, {share(part)} of the median"
        title += f", {wrong} wrong elements" if wrong else ""
        yield PairCell(text=f"{measured / 1e9:.3g}{'!' if wrong else ''}", tone=tone, title=title)
