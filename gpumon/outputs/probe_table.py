"""The result of a probe run as text for a terminal: the columns of nccl-tests, and an evaluation of the figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from gpumon.outputs.formatting import ABSENT, bandwidth, participants, share, size
from gpumon.probe.core.probes import PROBES
from gpumon.probe.core.result import Comparison, Location, Measurement, Pair, ProbeResult, to_document

_COLUMNS = ("size", "count", "type", "min", "p50", "p95", "p99", "cv", "algbw", "busbw", "#wrong")
_UNITS = ("(B)", "(elements)", "", "(us)", "(us)", "(us)", "(us)", "", "(GB/s)", "(GB/s)", "")
_WIDTHS = (12, 13, 9, 10, 10, 10, 10, 7, 9, 9, 8)
_BYTES = {"float32": 4, "bfloat16": 2}
_MAX_RANKS = 16
"""Maximum number of ranks in the matrix of pairs, which must fit on a terminal."""


def table(result: ProbeResult) -> str:
    """Return the whole result of a run as text. Times are per operation; 1 GB is 1e9 bytes."""
    lines = [f"# {_title(result)}"]
    if result.measurements:
        lines += ["#", "#" + _line(_COLUMNS)[1:], "#" + _line(_UNITS)[1:]]
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
    """Return a sentence with a measured bandwidth, as an absolute value and as a percentage of each reference value.

    If the bandwidth is too low compared with one of them, the end of the sentence names that one.
    """
    busbw, low = comparison.busbw_bytes_per_second, comparison.below_reference
    references = [
        _share_of(busbw, comparison.baseline_bytes_per_second, f"this host's median of {comparison.runs} runs"),
        _share_of(busbw, comparison.best_bytes_per_second, f"its best median, until {comparison.best_date}")
        if low == "drift"
        else "",
        _share_of(busbw, comparison.expected_bytes_per_second, comparison.source),
    ]
    texts = [text for text in references if text]
    if comparison.baseline_bytes_per_second is None:
        texts.append(f"no baseline yet ({comparison.runs} of {comparison.runs_needed} runs)")
    below = f": low against {low}" if low else ""
    return f"{_name(comparison)} at {size(comparison.bytes)}: {bandwidth(busbw)}, {', '.join(texts)}{below}"


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
    """Yield lines for each collective, algorithm and data type: a heading, then a line for each message size."""
    ordered = sorted(result.measurements, key=lambda item: item.key)
    for (collective, algorithm, _), sizes in groupby(ordered, lambda item: item.key[:3]):
        yield f"# {collective}, {algorithm}"
        yield from (_line(_cells(item)) for item in sizes)


def _cells(item: Measurement) -> tuple[str, ...]:
    cv = ABSENT if item.variation_ratio is None else f"{item.variation_ratio:.3f}"
    return (
        str(item.bytes),
        str(item.bytes // _BYTES[item.dtype]),
        item.dtype,
        ABSENT if item.min_seconds is None else f"{item.min_seconds * 1e6:.1f}",
        *(f"{item.latency_seconds[name] * 1e6:.1f}" for name in ("p50", "p95", "p99")),
        cv,
        f"{item.algbw_bytes_per_second / 1e9:.2f}",
        f"{item.busbw_bytes_per_second / 1e9:.2f}",
        str(item.wrong_elements),
    )


def _line(cells: Sequence[str]) -> str:
    return "".join(cell.rjust(width) for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip()


def _name(comparison: Comparison) -> str:
    dtype = "" if comparison.dtype == "float32" else f", {comparison.dtype}"
    return f"{comparison.collective}, {comparison.algorithm}{dtype}"


def _share_of(value: float, reference: float | None, source: str) -> str:
    return f"{share(value / reference)} of {bandwidth(reference)} ({source})" if reference else ""


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
