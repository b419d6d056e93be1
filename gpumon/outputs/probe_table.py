"""The result of a probe run as text for a terminal: the columns of nccl-tests, and an evaluation of the figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from gpumon.outputs.formatting import ABSENT, participants, probe_size, quantity, share
from gpumon.probe.core.probes import PROBES
from gpumon.probe.core.result import Comparison, Location, Measurement, Pair, ProbeResult, to_document
from gpumon.probe.core.wording import scale

_WIDTHS = (12, 13, 9, 10, 10, 10, 10, 7, 9, 9, 8)
SIZE_UNITS = {"bytes": "B"}
_BYTES = {"float32": 4, "bfloat16": 2}
_MAX_RANKS = 16
"""Maximum number of ranks in the matrix of pairs, which must fit on a terminal."""


def table(result: ProbeResult) -> str:
    """Return the whole result of a run as text. Times are per operation; 1 GB is 1e9 bytes."""
    lines = [f"# {_title(result)}"]
    if result.measurements:
        lines += ["#", *("#" + _line(cells)[1:] for cells in _headings(result))]
        lines += _groups(result)
        lines += ["#"] * bool(result.comparisons) + [f"# {comparison_sentence(item)}" for item in result.comparisons]
        lines.append("#")
    lines.append(f"# {_ending(result)}")
    if result.hint:
        lines.append(f"# {result.hint}")
    if result.location is not None:
        lines += [f"# {text}" if text else "#" for text in _location_lines(result.location, result)]
    if result.log:
        lines += ["", result.log]
    return "\n".join(lines) + "\n"


def comparison_sentence(comparison: Comparison) -> str:
    """Return a sentence with a measured value, and its percentage of each reference value.

    If the value is worse than one of them, the end of the sentence names that one.
    """
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
    return f"{_name(comparison)} at {at}: {value}, {', '.join(texts)}{below}"


def _headings(result: ProbeResult) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the columns, and their units."""
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


def _groups(result: ProbeResult) -> Iterator[str]:
    """Yield lines for each operation, algorithm and data type: a heading, then a line for each size."""
    ordered = sorted(result.measurements, key=lambda item: item.key)
    for (operation, algorithm, _), sizes in groupby(ordered, lambda item: item.subject):
        yield f"# {operation}, {algorithm}"
        yield from (_line(_cells(item)) for item in sizes)


def _cells(item: Measurement) -> tuple[str, ...]:
    cv = ABSENT if item.variation_ratio is None else f"{item.variation_ratio:.3f}"
    factor, _ = scale(item.unit)
    return (
        str(item.size),
        str(item.size // _BYTES[item.dtype]) if item.size_unit == "bytes" else ABSENT,
        item.dtype,
        ABSENT if item.min_seconds is None else f"{item.min_seconds * 1e6:.1f}",
        *(f"{item.latency_seconds[name] * 1e6:.1f}" for name in ("p50", "p95", "p99")),
        cv,
        "" if item.raw_value is None else f"{item.raw_value / factor:.2f}",
        f"{item.value / factor:.2f}",
        str(item.wrong_elements),
    )


def _line(cells: Sequence[str]) -> str:
    return "".join(cell.rjust(width) for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip()


def _name(comparison: Comparison) -> str:
    dtype = "" if comparison.dtype == "float32" else f", {comparison.dtype}"
    return f"{comparison.operation}, {comparison.algorithm}{dtype}"


def _share_of(comparison: Comparison, reference: float | None, source: str) -> str:
    if not reference:
        return ""
    return f"{share(comparison.value / reference)} of {quantity(reference, comparison.unit)} ({source})"


def _ending(result: ProbeResult) -> str:
    reason = f": {result.reason}" if result.reason else ""
    wrong = f", {result.wrong_elements} wrong elements" if result.wrong_elements else ""
    return f"{result.outcome}{reason}{wrong}, after {result.duration_seconds:.1f} s"


def _location_lines(location: Location, result: ProbeResult) -> Iterator[str]:
    if location.message not in result.hint:
        yield location.message
    yield from location.evidence
    ranks = sorted({rank for pair in location.pairs for rank in pair.ranks})
    if 2 < len(ranks) <= _MAX_RANKS:
        yield ""
        indexes = result.conditions.indexes
        yield f"pairs of {'GPUs' if indexes else 'ranks'}, one pair at a time, GB/s in each direction:"
        yield from _matrix(ranks, {pair.ranks: pair for pair in location.pairs}, indexes or range(result.ranks))


def _matrix(ranks: Sequence[int], pairs: Mapping[tuple[int, int], Pair], numbers: Sequence[int]) -> Iterator[str]:
    """Yield a heading, then a line for each rank with the bandwidths of its pairs in GB/s.

    `!` follows the bandwidth of a pair that received wrong data. `numbers` has the number to show for each rank: the
    index of its GPU, or the rank itself.
    """
    yield "".join(f"{numbers[rank]:8}" for rank in ranks).join(("      ", ""))
    for row in ranks:
        row_pairs = (pairs.get((min(row, column), max(row, column))) for column in ranks)
        cells = (
            "-"
            if pair is None
            else f"{pair.bandwidth_bytes_per_second / 1e9:.2f}{'!' if any(pair.wrong_elements) else ''}"
            for pair in row_pairs
        )
        yield f"{numbers[row]:6}" + "".join(f"{cell:>8}" for cell in cells)
