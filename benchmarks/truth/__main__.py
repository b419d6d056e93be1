"""`make truth`: measure everything, and write docs/truth.md from the newest result of each measurement."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict

from benchmarks.truth.benign import DISTURBANCES
from benchmarks.truth.page import PAGE, page_of, problems_of
from benchmarks.truth.rows import MEASURED_FAULTS
from benchmarks.truth.work import MEASURED, Piece, ResultStore, all_pieces, measure_all, quick_pieces


def main() -> int:
    """Return 1 if a fault was missed or a false verdict was raised without a reason in the tables."""
    parser = argparse.ArgumentParser(prog="make truth", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="measure every fault on its smallest node only")
    parser.add_argument("--only", default="", metavar="NAME", help="measure only rows whose name contains this text")
    parser.add_argument("--resume", action="store_true", help="leave out what was measured with the present code")
    args = parser.parse_args()
    whole = list(all_pieces())
    pieces = [piece for piece in (quick_pieces() if args.quick else whole) if args.only in " ".join(piece.names)]
    store = ResultStore(MEASURED)
    left = [piece for piece in pieces if not (args.resume and store.is_current(piece))]
    measure_all(left, store, _Progress(len(left)))
    store.write(whole)
    PAGE.write_text(page_of(store))
    results = store.results(pieces)
    if len(pieces) < len(whole):
        for result in results:
            print({name: value for name, value in asdict(result).items() if value not in ((), "")})
    problems = problems_of(results, MEASURED_FAULTS, DISTURBANCES)
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


if __name__ == "__main__":
    sys.exit(main())
