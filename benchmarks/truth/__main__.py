"""`make truth`: measure everything and write docs/truth.md."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks.truth.benign import DISTURBANCES
from benchmarks.truth.faults import FAULTS
from benchmarks.truth.page import page, unexplained
from benchmarks.truth.work import Kept, Piece, Result, all_of, everything, quick

PAGE = Path(__file__).parents[2] / "docs" / "truth.md"


def main() -> int:
    """Exit code 1 when something was missed, or said, that no row explains."""
    parser = argparse.ArgumentParser(prog="make truth", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="every fault on its smallest node alone; writes no page")
    parser.add_argument("--only", default="", help="what has these words in its name; writes no page")
    parser.add_argument("--kind", choices=("fault", "pair", "calm"), help="these alone; writes no page")
    parser.add_argument(
        "--keep", type=Path, help="note every result in this file, and measure none again that is in it"
    )
    parser.add_argument("--known", action="store_true", help="measure nothing: what is in the file, and no more")
    parser.add_argument("--page", action="store_true", help="write the page all the same, of what was measured")
    parser.add_argument("--on", help="this profile alone; writes no page")
    chosen = parser.parse_args()
    pieces = list(quick() if chosen.quick else everything())
    partial = chosen.quick or chosen.only or chosen.kind or chosen.known or chosen.on
    pieces = [one for one in pieces if chosen.only in " ".join(one.names) and chosen.kind in {None, one.kind}]
    pieces = [one for one in pieces if chosen.on in {None, one.profile}]
    kept = Kept(chosen.keep)
    if chosen.known:
        pieces = [one for one in pieces if one in kept]
    results = all_of(pieces, kept, _Progress(len(pieces)))
    if chosen.page or not partial:
        PAGE.write_text(page(results, FAULTS, DISTURBANCES, len(list(everything())), kept.states(pieces)))
    problems = unexplained(results, FAULTS, DISTURBANCES)
    _tell(pieces, results, told=bool(partial))
    print("\n".join(problems) or "everything was found, and nothing else was said", flush=True)
    return 1 if problems else 0


class _Progress:
    """Says every ten seconds how far it is."""

    def __init__(self, pieces: int) -> None:
        self._pieces = pieces
        self._told_at = time.monotonic()

    def __call__(self, done: int, piece: Piece) -> None:
        if time.monotonic() - self._told_at > 10 or done == self._pieces:
            self._told_at = time.monotonic()
            print(f"{done} of {self._pieces}: {piece.names[0]} on {piece.profile}", file=sys.stderr, flush=True)


def _tell(pieces: list[Piece], results: list[Result], *, told: bool) -> None:
    if told:
        for piece, result in zip(pieces, results, strict=True):
            print(piece.profile, {name: value for name, value in asdict(result).items() if value not in ((), "")})


if __name__ == "__main__":
    sys.exit(main())
