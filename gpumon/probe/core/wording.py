"""Writes lists and GPU indexes in words, and detects partial runs.

`gpumon check` imports this module, so it imports nothing slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

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
    return join_words([words for row in rows for words in _row(row)])


def _row(indexes: list[int]) -> list[str]:
    return [f"{indexes[0]} to {indexes[-1]}"] if len(indexes) >= MIN_RANGE else [str(index) for index in indexes]
