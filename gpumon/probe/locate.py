"""Which rank, or which path between two, is to blame? From what every two of them exchanged alone. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from gpumon.probe.passes import Pass, pairs
from gpumon.probe.result import Location, Pair

SLOW = 0.7
"""A pair below this share of the others' median is slow."""
TWO = 2
"""Ranks of which either may be the slow one."""
MOST = 0.75
"""A rank of whose pairs more than this share are slow is slow itself."""


def locate(one: Pass) -> Location | None:
    """None where no pairs were measured."""
    found = pairs(one)
    if not found:
        return None
    ranks = _wrong(found) or _slow(found, one.plan.ranks)
    gpus = tuple(one.plan.gpus[rank] for rank in ranks) if one.plan.gpus else ()
    return Location(sentence=_sentence(one, ranks, found), ranks=ranks, gpus=gpus, pairs=found)


def _wrong(found: Sequence[Pair]) -> tuple[int, ...]:
    """Ranks from which wrong elements came."""
    sources = {rank for pair in found for rank, wrong in zip(pair.ranks, pair.wrong, strict=True) if wrong}
    return tuple(sorted(sources))


def _slow(found: Sequence[Pair], ranks: int) -> tuple[int, ...]:
    """One rank whose pairs are nearly all slow, else the two of the only slow pair, else nobody."""
    if ranks == TWO:
        return ()
    usual = statistics.median(pair.bandwidth for pair in _fastest_half(found))
    slow = [pair for pair in found if pair.bandwidth < SLOW * usual]
    suspects = [rank for rank in range(ranks) if _share(slow, found, rank) > MOST]
    if len(suspects) == 1:
        return (suspects[0],)
    return slow[0].ranks if len(slow) == 1 else ()


def _fastest_half(found: Sequence[Pair]) -> Sequence[Pair]:
    """Of 4 ranks one slow one spoils half of all pairs."""
    ordered = sorted(found, key=lambda pair: pair.bandwidth, reverse=True)
    return ordered[: max(1, len(ordered) // 2)]


def _share(slow: Sequence[Pair], found: Sequence[Pair], rank: int) -> float:
    own = [pair for pair in found if rank in pair.ranks]
    return sum(rank in pair.ranks for pair in slow) / len(own) if own else 0.0


def _sentence(one: Pass, ranks: Sequence[int], found: Sequence[Pair]) -> str:
    named = [_name(one, rank) for rank in ranks]
    if any(any(pair.wrong) for pair in found):
        return f"Wrong data comes from {' and from '.join(named)}."
    if len(named) == 1:
        return f"{named[0]} is slow with every other."
    if named:
        return f"Only the path between {named[0]} and {named[1]} is slow."
    return "No pair alone is slower than the others, so it cannot be said where the loss is."


def _name(one: Pass, rank: int) -> str:
    return f"GPU {one.plan.gpus[rank]} (rank {rank})" if one.plan.gpus else f"rank {rank}"
