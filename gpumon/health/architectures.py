"""TABLE: Xids that only some GPUs can have, by the columns "applies to" of NVIDIA's catalogue.

A critical Xid is exported as 0 on every GPU that can have it, and not at all on the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

RANKS: Mapping[str, int] = {
    "Kepler": 2,
    "Maxwell": 3,
    "Pascal": 4,
    "Volta": 5,
    "Turing": 6,
    "Ampere": 7,
    "Ada": 9,  # the catalogue has no column for Ada: the codes of Ampere and of Hopper
    "Hopper": 9,
    "Blackwell": 10,
}
_TURING, _AMPERE, _HOPPER, _BLACKWELL = 6, 7, 9, 10

SINCE: Mapping[int, int] = {
    **dict.fromkeys((119, 120), _TURING),
    95: _AMPERE,
    **dict.fromkeys((110, 136, 143, 151, 156, 157, 167, 169), _HOPPER),
    **dict.fromkeys((150, 155), _BLACKWELL),
}
"""The first rank that has the code."""
UNTIL: Mapping[int, int] = {57: _TURING, 58: _TURING, 74: _HOPPER, 136: _HOPPER}
"""The last rank that has the code."""
CHIP_TO_CHIP = frozenset({173})
"""Codes of GPUs with links to a Grace CPU."""


def possible_xids(xids: Iterable[int], architecture: str | None, *, chip_to_chip: bool) -> Iterable[int]:
    """Yield the codes that a GPU can have: all if its architecture is unlisted. None: it was not opened yet."""
    rank = RANKS.get(architecture or "")
    for xid in xids:
        if xid in CHIP_TO_CHIP:
            can = chip_to_chip
        elif architecture is None:
            can = xid not in SINCE and xid not in UNTIL
        else:
            can = rank is None or SINCE.get(xid, rank) <= rank <= UNTIL.get(xid, rank)
        if can:
            yield xid
