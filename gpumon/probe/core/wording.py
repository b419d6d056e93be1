"""Which GPUs took part in a run, and their numbers in words. `gpumon check` prints with it: it imports nothing slow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

LEAST_RANGE = 3
"""Numbers that are told as a range."""


def leaves_out(gpus: Sequence[str], ranks: int, host_gpus: int) -> bool:
    """Whether a run on these GPUs left some of the host out; on the CPU none takes part."""
    return bool(gpus) and ranks != host_gpus


def enumerated(words: Sequence[str]) -> str:
    """One, two and three."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def numbered(indexes: Iterable[int]) -> str:
    """0 to 3, 5 and 7."""
    ordered = enumerate(sorted(indexes))
    rows = [[index for _, index in row] for _, row in groupby(ordered, lambda one: one[1] - one[0])]
    return enumerated([words for row in rows for words in _row(row)])


def _row(indexes: list[int]) -> list[str]:
    return [f"{indexes[0]} to {indexes[-1]}"] if len(indexes) >= LEAST_RANGE else [str(one) for one in indexes]
