"""A run of a probe as a terminal shows it: the columns of nccl-tests, and under them what the figures mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from gpumon.outputs.words import ABSENT, bandwidth, share, size, took_part
from gpumon.probe.core.probes import PROBES
from gpumon.probe.core.result import Comparison, Location, Measurement, Pair, ProbeResult, to_document

_COLUMNS = ("size", "count", "type", "min", "p50", "p95", "p99", "cv", "algbw", "busbw", "#wrong")
_UNITS = ("(B)", "(elements)", "", "(us)", "(us)", "(us)", "(us)", "", "(GB/s)", "(GB/s)", "")
_WIDTHS = (12, 13, 9, 10, 10, 10, 10, 7, 9, 9, 8)
_BYTES = {"float32": 4, "bfloat16": 2}
_MOST_RANKS = 16
"""Of more, a matrix is wider than a terminal."""


def table(result: ProbeResult) -> str:
    """The whole result in lines; time is the median of an operation. GB are 1e9 bytes."""
    lines = [f"# {_title(result)}"]
    if result.measurements:
        lines += ["#", "#" + _line(_COLUMNS)[1:], "#" + _line(_UNITS)[1:]]
        lines += _groups(result)
        lines += ["#"] * bool(result.comparisons) + [f"# {compared(one)}" for one in result.comparisons]
        lines.append("#")
    lines.append(f"# {_ending(result)}")
    if result.hint:
        lines.append(f"# {result.hint}")
    if result.location is not None:
        lines += [f"# {words}" if words else "#" for words in _located(result.location, result)]
    if result.log:
        lines += ["", result.log]
    return "\n".join(lines) + "\n"


def compared(one: Comparison) -> str:
    """A measurement beside what was to be expected, as a sentence."""
    usual = [
        _of(one.busbw, one.baseline, f"this host's own median of {one.runs} runs"),
        _of(one.busbw, one.best, f"its best, up to {one.best_date}") if one.low == "drift" else "",
        _of(one.busbw, one.expected, one.source),
    ]
    known = [words for words in usual if words]
    if one.baseline is None:
        known.append(f"no median of its own yet ({one.runs} of {one.runs_needed} runs)")
    low = f": low, by {one.low}" if one.low else ""
    return f"{_name(one)} at {size(one.bytes)}: {bandwidth(one.busbw)}, {', '.join(known)}{low}"


def _title(result: ProbeResult) -> str:
    probe = PROBES.get(result.probe)
    parts = [probe.title if probe else result.probe]
    if result.ranks:
        parts += [result.backend, took_part(to_document(result))]
    conditions = result.conditions
    parts += [words for words in (conditions.model, conditions.driver and f"driver {conditions.driver}") if words]
    parts += [f"{name} {version}" for name, version in result.versions.items()]
    return ", ".join(parts + ["simulated node"] * result.simulated)


def _groups(result: ProbeResult) -> Iterator[str]:
    """A heading for each way of measuring, and a line a size."""
    ordered = sorted(result.measurements, key=lambda one: (one.collective, one.algorithm, one.dtype, one.bytes))
    for (collective, algorithm, _), sizes in groupby(ordered, lambda one: (one.collective, one.algorithm, one.dtype)):
        yield f"# {collective}, {algorithm}"
        yield from (_line(_cells(one)) for one in sizes)


def _cells(one: Measurement) -> tuple[str, ...]:
    cv = ABSENT if one.variation_ratio is None else f"{one.variation_ratio:.3f}"
    return (
        str(one.bytes),
        str(one.bytes // _BYTES[one.dtype]),
        one.dtype,
        ABSENT if one.min_seconds is None else f"{one.min_seconds * 1e6:.1f}",
        *(f"{one.latency_seconds[name] * 1e6:.1f}" for name in ("p50", "p95", "p99")),
        cv,
        f"{one.algbw_bytes_per_second / 1e9:.2f}",
        f"{one.busbw_bytes_per_second / 1e9:.2f}",
        str(one.wrong_elements),
    )


def _line(cells: Sequence[str]) -> str:
    return "".join(cell.rjust(width) for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip()


def _name(one: Comparison) -> str:
    return f"{one.collective}, {one.algorithm}" + ("" if one.dtype == "float32" else f", {one.dtype}")


def _of(value: float, usual: float | None, whose: str) -> str:
    return f"{share(value / usual)} of {bandwidth(usual)} ({whose})" if usual else ""


def _ending(result: ProbeResult) -> str:
    reason = f": {result.reason}" if result.reason else ""
    wrong = f", {result.wrong_elements} wrong elements" if result.wrong_elements else ""
    return f"{result.outcome}{reason}{wrong}, after {result.duration_seconds:.1f} s"


def _located(one: Location, result: ProbeResult) -> Iterator[str]:
    """What the hint has not said already."""
    if one.sentence not in result.hint:
        yield one.sentence
    yield from one.evidence
    ranks = sorted({rank for pair in one.pairs for rank in pair.ranks})
    if 2 < len(ranks) <= _MOST_RANKS:
        yield ""
        known = result.conditions.indexes
        yield f"between two {'GPUs' if known else 'ranks'} alone, GB/s each way:"
        yield from _matrix(ranks, {pair.ranks: pair for pair in one.pairs}, known or range(result.ranks))


def _matrix(ranks: Sequence[int], pairs: Mapping[tuple[int, int], Pair], numbers: Sequence[int]) -> Iterator[str]:
    """`numbers`: what each rank is called."""
    yield "".join(f"{numbers[rank]:8}" for rank in ranks).join(("      ", ""))
    for row in ranks:
        found = (pairs.get((min(row, column), max(row, column))) for column in ranks)
        cells = (
            "-" if pair is None else f"{pair.bandwidth / 1e9:.2f}{'!' if any(pair.wrong) else ''}" for pair in found
        )
        yield f"{numbers[row]:6}" + "".join(f"{cell:>8}" for cell in cells)
