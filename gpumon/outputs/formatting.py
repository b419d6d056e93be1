"""Formats numbers, times and durations as text. None, which represents an absent reading, is formatted as "n/a"."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, overload

from gpumon.model.durations import from_rfc3339, utc
from gpumon.probe.core.wording import SYMBOLS, index_ranges, leaves_out

ABSENT = "n/a"
GAP = "  "
MINUTE, HOUR, DAY = 60, 3600, 86400
STAGE_TEXTS = {
    "start": "starting",
    "import": "importing torch",
    "join": "joining",
    "allocate": "allocating",
    "warm_up": "warming up",
    "measure": "measuring",
    "check": "checking",
    "repeat": "repeating",
    "locate": "locating",
    "end": "ending",
}


def size(count: float | None) -> str:
    """Format a number of bytes in binary units (KiB, MiB, ...), as for memory and message sizes."""
    if count is None:
        return ABSENT
    return _scale(count, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def quantity(value: float, unit: str) -> str:
    """Format a measured value in decimal multiples of its unit (kB/s, GFLOP/s, ...)."""
    symbol = SYMBOLS.get(unit, f" {unit}")
    return latency(value) if symbol == "s" else _scale(value, 1000, [prefix + symbol for prefix in ("", *"kMGTP")])


def line_rate(bytes_per_second: float | None) -> str:
    """Format bytes per second as the speed of a network link, in Gb/s (bits)."""
    return ABSENT if bytes_per_second is None else f"{bytes_per_second * 8 / 1e9:.3g} Gb/s"


def _rounded(unit: str, factor: float = 1) -> Callable[[float | None], str]:
    """Return a function that formats a reading, multiplied by `factor`, as a whole number with this unit."""
    return lambda value: ABSENT if value is None else f"{value * factor:.0f}{unit}"


celsius, clock, count = _rounded(" °C"), _rounded(" MHz", 1e-6), _rounded("")
share, watts = _rounded(" %", 100), _rounded(" W")


def latency(seconds: float | None) -> str:
    if seconds is None:
        return ABSENT
    scales = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
    factor, unit = next((scale for scale in scales if seconds >= scale[0]), scales[-1])
    return f"{seconds / factor:.3g} {unit}"


def duration(seconds: float | None) -> str:
    """Format a duration in at most two units, such as 3 d 4 h, 2 h 5 min, 12 min or 45 s."""
    if seconds is None:
        return ABSENT
    whole = max(0, round(seconds))
    if whole < MINUTE:
        return f"{whole} s"
    for unit, larger, smaller, name in ((DAY, "d", "h", HOUR), (HOUR, "h", "min", MINUTE)):
        if whole >= unit:
            first, rest = divmod(whole, unit)
            return f"{first} {larger}" + (f" {rest // name} {smaller}" if rest >= name else "")
    return f"{whole // MINUTE} min"


def probe_size(count: int, unit: str) -> str:
    """Format a size that a probe measures: a number of bytes, or of another unit."""
    return size(count) if unit == "bytes" else f"{count} {unit}"


def stage(name: str, count: int | None, unit: str, algorithm: str) -> str:
    """Return the stage `name` of a probe run as text, with its size of `count` units and its algorithm, if given."""
    text = STAGE_TEXTS.get(name, name) + ("" if count is None else f" {probe_size(count, unit)}")
    return text + (f" ({algorithm})" if algorithm not in {"", "default"} else "")


def participants(run: Mapping[str, Any]) -> str:
    """Return the ranks of a run as text: `8 ranks`, or `4 of 8 GPUs (0-3)` with the GPU indexes during the run."""
    conditions = run["conditions"]
    if not is_partial(run):
        return f"{run['ranks']} rank{'s' * (run['ranks'] != 1)}"
    which = f" ({index_ranges(conditions['indexes'])})" if conditions["indexes"] else ""
    return f"{run['ranks']} of {conditions['host_gpus']} GPUs{which}"


def is_partial(run: Mapping[str, Any]) -> bool:
    """Return True if a run did not use all GPUs of the host."""
    conditions = run["conditions"]
    return leaves_out(conditions["gpus"], run["ranks"], conditions["host_gpus"])


def sentence(text: str) -> str:
    """Return a text with a capital first letter and a full stop. A first word such as nvmlInit is not capitalized."""
    text = text.strip().rstrip(".")
    if not text:
        return ""
    first, *rest = text.split(" ", 1)
    return " ".join((first.capitalize() if first.isalpha() and first.islower() else first, *rest)) + "."


@overload
def rfc3339(wall: float) -> str: ...
@overload
def rfc3339(wall: None) -> None: ...
@overload
def rfc3339(wall: float | None) -> str | None: ...
def rfc3339(wall: float | None) -> str | None:
    """Format a time, given in seconds since the epoch, in RFC 3339: UTC, to the millisecond. Return None for None."""
    if wall is None:
        return None
    return utc(wall).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds_between(earlier: str | None, later: str) -> float | None:
    """Return the seconds between two times in RFC 3339; None if `earlier` is None."""
    if earlier is None:
        return None
    return (from_rfc3339(later) - from_rfc3339(earlier)).total_seconds()


def columns(lines: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table as text. Each column is as wide as its longest cell."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [row(line, widths) for line in lines]


def row(cells: Iterable[str], widths: Sequence[int]) -> str:
    """Return one line of a table as text. Each cell is padded to the width of its column."""
    return GAP.join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _scale(number: float, base: int, units: Sequence[str]) -> str:
    rank = 0
    while abs(number) >= base and rank < len(units) - 1:
        number, rank = number / base, rank + 1
    digits = 0 if rank == 0 or abs(number) >= 100 else 1
    return f"{number:.{digits}f}".removesuffix(".0") + f" {units[rank]}"
