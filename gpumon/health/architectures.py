"""SINCE and UNTIL: Xids that only some GPU architectures can report, by the columns "applies to" of NVIDIA's catalogue.

The counter of a critical Xid is exported, starting at 0, for every GPU that can report the Xid. For another GPU it is
exported only after the GPU has reported the Xid.
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
    "Ada": 9,  # the catalogue has no column for Ada, which can report the codes of Ampere and of Hopper
    "Hopper": 9,
    "Blackwell": 10,
}
_TURING, _AMPERE, _HOPPER, _BLACKWELL = 6, 7, 9, 10

SINCE: Mapping[int, int] = {
    **dict.fromkeys((119, 120), _TURING),
    95: _AMPERE,
    **dict.fromkeys((110, 136, 143, 151, 156, 167, 169), _HOPPER),
    **dict.fromkeys((150, 155), _BLACKWELL),
}
"""Lowest rank (RANKS) of an architecture that can report the Xid, by Xid. An unlisted Xid has no lowest rank."""
UNTIL: Mapping[int, int] = {57: _TURING, 58: _TURING, 74: _HOPPER, 136: _HOPPER}
"""Highest rank (RANKS) of an architecture that can report the Xid, by Xid. An unlisted Xid has no highest rank."""
CHIP_TO_CHIP = frozenset({173})
"""Xids that only GPUs with a chip-to-chip link to a Grace CPU can report."""


def possible_xids(xids: Iterable[int], architecture: str | None, *, chip_to_chip: bool) -> Iterable[int]:
    """Yield those of `xids` that a GPU of this architecture can report.

    SINCE and UNTIL do not restrict an architecture that is not in RANKS. `architecture` is None until the GPU has been
    opened: then only the Xids that every architecture can report are yielded. `chip_to_chip`: whether the GPU has links
    to a Grace CPU. Without them it cannot report the Xids of CHIP_TO_CHIP.
    """
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
