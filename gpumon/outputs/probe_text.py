"""Runs of probes as text for a terminal: one in the columns of nccl-tests, with its evaluation, or a history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from gpumon.outputs.formatting import ABSENT, columns, participants, probe_size, quantity, share
from gpumon.outputs.responses.base import Document
from gpumon.probe.core.probes import ELEMENT_BYTES, PROBES
from gpumon.probe.core.result import (
    DECISIVE,
    Comparison,
    Location,
    Measurement,
    ProbeResult,
    current_result,
    newest_result,
    to_document,
)
from gpumon.probe.core.state import ProbeState
from gpumon.probe.core.wording import scale

_WIDTHS = (12, 13, 9, 10, 10, 10, 10, 7, 9, 9, 8)
SIZE_UNITS = {"bytes": "B"}
_MAX_RANKS = 16
"""Maximum number of ranks in the matrix of pairs, which must fit on a terminal."""


def table(result: ProbeResult) -> str:
    """Return the whole result of a run as text. Times are per operation; 1 GB is 1e9 bytes."""
    lines = [f"# {_title(result)}"]
    if result.measurements:
        lines += ["#", *("#" + _line(cells)[1:] for cells in _headings(result))]
        ordered = sorted(result.measurements, key=lambda item: item.key)
        for heading, sizes in groupby(ordered, lambda item: f"# {item.operation}, {item.variant(result.probe)}"):
            lines += [heading, *(_line(_cells(item)) for item in sizes)]
        lines += ["#"] * bool(result.comparisons) + [
            f"# {comparison_sentence(item, result.probe)}" for item in result.comparisons
        ]
        lines.append("#")
    reason = f": {result.reason}" if result.reason else ""
    wrong = f", {result.wrong_elements} wrong elements" if result.wrong_elements else ""
    lines.append(f"# {result.outcome}{reason}{wrong}, after {result.duration_seconds:.1f} s")
    if result.hint:
        lines.append(f"# {result.hint}")
    if result.location is not None:
        lines += [f"# {text}" if text else "#" for text in _location_lines(result.location, result)]
    if result.log:
        lines += ["", result.log]
    return "\n".join(lines) + "\n"


def comparison_sentence(comparison: Comparison, probe: str) -> str:
    """Return a sentence with a value that this probe measured, and its percentage of each reference value."""
    low, best = comparison.below_reference, f"its best median, until {comparison.best_date}"
    references = [
        _share_of(comparison, comparison.baseline, f"this host's median of {comparison.runs} runs"),
        _share_of(comparison, comparison.best, best) if low == "drift" else "",
        _share_of(comparison, comparison.expected, comparison.source),
    ]
    texts = [text for text in references if text]
    if comparison.baseline is None:
        texts.append(f"no baseline yet ({comparison.runs} of {comparison.runs_needed} runs)")
    below = f": low against {low}" if low else ""
    at, value = probe_size(comparison.size, comparison.size_unit), quantity(comparison.value, comparison.unit)
    return f"{comparison.operation}, {comparison.variant(probe)} at {at}: {value}, {', '.join(texts)}{below}"


def _headings(result: ProbeResult) -> tuple[tuple[str, ...], tuple[str, ...]]:
    first, probe = result.measurements[0], PROBES.get(result.probe)
    size_unit, (_, unit) = SIZE_UNITS.get(first.size_unit, first.size_unit), scale(first.unit)
    raw = probe.raw_quantity if probe is not None else ""
    return (
        ("size", "count", "type", "min", "p50", "p95", "p99", "cv", raw, first.quantity, "#wrong"),
        (f"({size_unit})", "(elements)", "", *4 * ("(us)",), "", f"({unit})" if raw else "", f"({unit})", ""),
    )


def _title(result: ProbeResult) -> str:
    probe = PROBES.get(result.probe)
    parts = [probe.title if probe else result.probe]
    if result.ranks:
        parts += [result.backend, participants(to_document(result))]
    conditions = result.conditions
    parts += filter(None, (conditions.model, conditions.driver and f"driver {conditions.driver}"))
    parts += [f"{name} {version}" for name, version in result.versions.items()]
    return ", ".join(parts + ["simulated node"] * result.simulated)


def _cells(item: Measurement) -> tuple[str, ...]:
    factor, _ = scale(item.unit)
    width = ELEMENT_BYTES.get(item.dtype) if item.size_unit == "bytes" else None
    return (
        str(item.size),
        ABSENT if width is None else str(item.size // width),
        item.dtype,
        ABSENT if item.min_seconds is None else f"{item.min_seconds * 1e6:.1f}",
        *(f"{item.latency_seconds[name] * 1e6:.1f}" for name in ("p50", "p95", "p99")),
        ABSENT if item.variation_ratio is None else f"{item.variation_ratio:.3f}",
        "" if item.raw_value is None else f"{item.raw_value / factor:.2f}",
        f"{item.value / factor:.2f}",
        str(item.wrong_elements),
    )


def _line(cells: Sequence[str]) -> str:
    return "".join(f" {cell}".rjust(width) for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip()


def _share_of(comparison: Comparison, reference: float | None, source: str) -> str:
    if not reference:
        return ""
    return f"{share(comparison.value / reference)} of {quantity(reference, comparison.unit)} ({source})"


def _location_lines(location: Location, result: ProbeResult) -> Iterator[str]:
    if location.message not in result.hint:
        yield location.message
    yield from location.evidence
    ranks = sorted({rank for pair in location.pairs for rank in pair.ranks})
    if not 2 < len(ranks) <= _MAX_RANKS:
        return
    indexes = result.conditions.indexes
    numbers = indexes or range(result.ranks)
    yield ""
    yield f"pairs of {'GPUs' if indexes else 'ranks'}, one pair at a time, GB/s in each direction:"
    yield " " * 6 + "".join(f"{numbers[rank]:8}" for rank in ranks)
    cells = {
        pair.ranks: f"{pair.bandwidth_bytes_per_second / 1e9:.2f}{'!' if any(pair.wrong_elements) else ''}"
        for pair in location.pairs
    }
    for row in ranks:
        texts = (cells.get((min(row, column), max(row, column)), "-") for column in ranks)
        yield f"{numbers[row]:6}" + "".join(f"{text:>8}" for text in texts)


NO_RUNS = "No run is stored."


def largest(run: Document) -> Mapping[str, Document]:
    """Return the measurements of the largest size, by operation and element type if there are several, else algorithm.

    Element types that the probe does not always measure are left out. A run that failed, timed out or was skipped has
    none.
    """
    if run["outcome"] not in DECISIVE:
        return {}
    probe = PROBES.get(run["probe"])
    measurements = [item for item in run["measurements"] if probe is None or item["dtype"] in probe.dtypes]
    several = [name for name in ("operation", "dtype") if len({item[name] for item in measurements}) > 1]
    names = several or ["algorithm"]
    ordered = sorted(measurements, key=lambda item: item["size"])
    return {", ".join(item[name] for name in names): item for item in ordered}


def comparison(run: Document, measurement: Document) -> Document | None:
    """Return the run's comparison of this measurement with reference values; None if the run has none."""
    key = ("operation", "algorithm", "dtype", "size")
    matching = (item for item in run["comparisons"] if all(item[name] == measurement[name] for name in key))
    return next(matching, None)


def baseline_ratio(run: Document, measurement: Document) -> float | None:
    """Return a measured value divided by this host's median at the time of the run; None without a median."""
    compared = comparison(run, measurement)
    baseline = None if compared is None else compared["baseline"]
    return float(measurement["value"]) / baseline if baseline else None


def history(runs: Sequence[Document]) -> str:
    """Return a table: for each run, its values at the largest size and their ratios to the median at its time."""
    if not runs:
        return NO_RUNS + "\n"
    algorithms = list(dict.fromkeys(name for run in runs for name in largest(run)))
    titles = ["STARTED", "PROBE", "OUTCOME", "RANKS"]
    titles += [title for name in algorithms for title in (name.upper(), "OF MEDIAN")] + ["REASON", "ID"]
    lines = [titles]
    for run in runs:
        ranks = f"{participants(run).partition(' rank')[0]} {run['backend']}" if run["ranks"] else "-"
        cells = [f"{run['started'][:10]} {run['started'][11:19]}Z", run["probe"], run["outcome"], ranks]
        by_algorithm = largest(run)
        for name in algorithms:
            measurement = by_algorithm.get(name)
            ratio = None if measurement is None else baseline_ratio(run, measurement)
            cells.append("-" if measurement is None else quantity(measurement["value"], measurement["unit"]))
            cells.append("-" if ratio is None else share(ratio))
        lines.append([*cells, run["reason"] or "-", run["id"]])
    return "\n".join(columns(lines)) + "\n"


def partial_run_note(state: ProbeState, probe: str) -> str:
    """Return a sentence if the newest run that was not skipped had too few GPUs to be the current result, or ""."""
    run, last = current_result(state.ran, probe), newest_result(state.ran, probe)
    if last is None or last == run:
        return ""
    return f"Run {last.id} is newer and was {last.outcome}, but had only {participants(to_document(last))}."
