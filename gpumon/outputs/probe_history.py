"""Runs of a probe as lines for a terminal, the newest first, from their JSON documents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gpumon.outputs.responses.base import Document
from gpumon.outputs.words import bandwidth, share, took_part
from gpumon.probe.core.result import DECISIVE

NONE = "No run is on record."
_GAP = "  "


def largest(run: Document) -> Mapping[str, Document]:
    """The measurement of the largest size, by algorithm, or where several collectives are measured by those.

    Of float32 where there are several types. Nothing of a run that did not measure to its end: what is the largest size
    there shows no bandwidth.
    """
    if run["outcome"] not in DECISIVE:
        return {}
    measured = [one for one in run["measurements"] if one["dtype"] == "float32"] or run["measurements"]
    way = "collective" if len({one["collective"] for one in measured}) > 1 else "algorithm"
    return {one[way]: one for one in sorted(measured, key=lambda one: one["bytes"])}


def comparison(run: Document, measurement: Document) -> Document | None:
    """What this measurement was compared with."""
    key = ("collective", "algorithm", "dtype", "bytes")
    found = (one for one in run["comparisons"] if all(one[name] == measurement[name] for name in key))
    return next(found, None)


def baseline_ratio(run: Document, measurement: Document) -> float | None:
    """Over this host's own median, as it was then; None where there was none."""
    compared = comparison(run, measurement)
    usual = None if compared is None else compared["baseline"]
    return float(measurement["busbw_bytes_per_second"]) / usual if usual else None


def history(runs: Sequence[Document]) -> str:
    """A line a run: bus bandwidth at the largest size by algorithm, and how that is to the baseline."""
    if not runs:
        return NONE + "\n"
    algorithms = list(dict.fromkeys(name for run in runs for name in largest(run)))
    titles = ["STARTED", "PROBE", "OUTCOME", "RANKS"]
    titles += [title for name in algorithms for title in (name.upper(), "OF MEDIAN")] + ["REASON", "ID"]
    lines = [titles, *([*_cells(run, algorithms)] for run in runs)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "".join(
        _GAP.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n" for line in lines
    )


def _cells(run: Document, algorithms: Iterable[str]) -> Iterable[str]:
    yield f"{run['started'][:10]} {run['started'][11:19]}Z"
    yield run["probe"]
    yield run["outcome"]
    yield f"{took_part(run).removesuffix(' ranks')} {run['backend']}" if run["ranks"] else "-"
    found = largest(run)
    for name in algorithms:
        one = found.get(name)
        ratio = None if one is None else baseline_ratio(run, one)
        yield "-" if one is None else bandwidth(one["busbw_bytes_per_second"])
        yield "-" if ratio is None else share(ratio)
    yield run["reason"] or "-"
    yield run["id"]
