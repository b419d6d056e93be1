"""`make truth`: measure everything and write docs/truth.md."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks.truth.benign import DISTURBANCES
from benchmarks.truth.faults import FAULTS
from benchmarks.truth.page import page, problems_of
from benchmarks.truth.work import Piece, Result, ResultStore, all_pieces, measure_all, quick_pieces

PAGE = Path(__file__).parents[2] / "docs" / "truth.md"


def main() -> int:
    """Return 1 if a fault was missed or a false verdict was raised without a reason in the tables."""
    parser = argparse.ArgumentParser(prog="make truth", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="measure every fault on its smallest node only; write no page"
    )
    parser.add_argument("--only", default="", help="measure only rows whose name contains this text; write no page")
    parser.add_argument("--kind", choices=("fault", "pair", "calm"), help="measure only this kind; write no page")
    parser.add_argument(
        "--keep", type=Path, help="store every result in this file, and skip pieces whose result is in it"
    )
    parser.add_argument("--known", action="store_true", help="measure nothing: use only the results in the file")
    parser.add_argument("--page", action="store_true", help="write the page even if only a part was measured")
    parser.add_argument("--on", help="measure on this profile only; write no page")
    args = parser.parse_args()
    pieces = list(quick_pieces() if args.quick else all_pieces())
    partial = args.quick or args.only or args.kind or args.known or args.on
    pieces = [piece for piece in pieces if args.only in " ".join(piece.names) and args.kind in {None, piece.kind}]
    pieces = [piece for piece in pieces if args.on in {None, piece.profile}]
    store = ResultStore(args.keep)
    if args.known:
        pieces = [piece for piece in pieces if piece in store]
    results = measure_all(pieces, store, _Progress(len(pieces)))
    if args.page or not partial:
        PAGE.write_text(page(results, FAULTS, DISTURBANCES, len(list(all_pieces())), store.states(pieces)))
    problems = problems_of(results, FAULTS, DISTURBANCES)
    if partial:
        _print_results(pieces, results)
    print("\n".join(problems) or "all faults were found; no false verdict was raised", flush=True)
    return 1 if problems else 0


class _Progress:
    """Progress, printed at most every ten seconds."""

    def __init__(self, pieces: int) -> None:
        self._pieces = pieces
        self._printed_at = time.monotonic()

    def __call__(self, done: int, piece: Piece) -> None:
        if time.monotonic() - self._printed_at > 10 or done == self._pieces:
            self._printed_at = time.monotonic()
            print(f"{done} of {self._pieces}: {piece.names[0]} on {piece.profile}", file=sys.stderr, flush=True)


def _print_results(pieces: list[Piece], results: list[Result]) -> None:
    for piece, result in zip(pieces, results, strict=True):
        print(piece.profile, {name: value for name, value in asdict(result).items() if value not in ((), "")})


if __name__ == "__main__":
    sys.exit(main())
