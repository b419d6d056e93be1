"""What the ranks are told to do together, one step after the other."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

WARM_UPS = 5
OPERATIONS = 20
PAIR_OPERATIONS = 8

Round = tuple[tuple[int, int], ...]
"""Pairs of ranks that exchange at the same time, the lower one first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """Time a collective at each size."""

    collective: str
    """As the worker's table names it."""
    dtype: str = "float32"
    sizes: tuple[int, ...]
    """Bytes."""
    warm_ups: int = WARM_UPS
    operations: int = OPERATIONS
    do: str = field(default="measure", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Let every two ranks exchange, to find out with whom it is slow or wrong."""

    bytes: int
    rounds: tuple[Round, ...]
    dtype: str = "float32"
    warm_ups: int = 2
    operations: int = PAIR_OPERATIONS
    do: str = field(default="pairs", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Misbehave:
    """For tests: from now on one rank does this wrong, as the worker's Fault reads it."""

    fault: str
    do: str = field(default="misbehave", init=False)


Step = Measure | Pairs | Misbehave


def encode(number: int, step: Step | None) -> bytes:
    """The line that a rank reads; None is the end."""
    return json.dumps({"number": number} | ({"do": "end"} if step is None else asdict(step))).encode() + b"\n"


def rounds(ranks: int) -> tuple[Round, ...]:
    """Every pair once, in the fewest rounds, by the circle method: 7 rounds of 4 pairs for 8 ranks."""
    places = [*range(ranks), *([None] if ranks % 2 else [])]
    last = len(places) - 1
    found = []
    for turn in range(last):
        circle = [places[0], *(places[1 + (turn + n) % last] for n in range(last))]
        pairs = ((circle[n], circle[last - n]) for n in range(len(places) // 2))
        found.append(tuple(sorted((min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None)))
    return tuple(found)
