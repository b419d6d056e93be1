"""Writes lists, GPU indexes and measured values in words, and detects partial runs.

`gpumon check` imports this module, so it imports nothing slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

SYMBOLS = {"bytes_per_second": "B/s", "flops_per_second": "FLOP/s", "seconds": "s"}
"""Symbol of each unit in which a probe measures. A unit that is missing is written as it is."""
_SCALES = {"bytes_per_second": (1e9, "G"), "flops_per_second": (1e12, "T"), "seconds": (1e-6, "u")}
MIN_RANGE = 3
"""Min number of consecutive indexes that are written as a range."""


def leaves_out(gpus: Sequence[str], ranks: int, host_gpus: int) -> bool:
    """Return whether a run used fewer GPUs than the host should have; False for a run on the CPU (`gpus` empty)."""
    return bool(gpus) and ranks != host_gpus


def join_words(words: Sequence[str]) -> str:
    """Join words as an English list, such as "one, two and three"."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def index_ranges(indexes: Iterable[int]) -> str:
    """Return GPU indexes as an English list with ranges, such as "0 to 3, 5 and 7"."""
    ordered = enumerate(sorted(indexes))
    rows = [[index for _, index in row] for _, row in groupby(ordered, lambda pair: pair[1] - pair[0])]
    words = [[f"{row[0]} to {row[-1]}"] if len(row) >= MIN_RANGE else map(str, row) for row in rows]
    return join_words([word for row in words for word in row])


def scale(unit: str) -> tuple[float, str]:
    """Return the factor and the symbol with which all values of a unit are shown, such as 1e9 and GB/s."""
    factor, prefix = _SCALES.get(unit, (1.0, ""))
    return factor, prefix + SYMBOLS.get(unit, unit)


def in_words(value: float, unit: str, form: str) -> str:
    """Return a value with its unit. `form`: format specification of the number."""
    factor, symbol = scale(unit)
    return f"{value / factor:{form}} {symbol}"


def size_in_words(size: int, size_unit: str) -> str:
    return f"{size / (1 << 20):g} MiB" if size_unit == "bytes" else f"{size} {size_unit}"
