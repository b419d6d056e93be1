"""`make pages`: measure what reaches a person for each fault, and write docs/pages.md."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median

from benchmarks.pages.measure import NotificationOutcome, Storm, measure, newly_firing, page
from benchmarks.pages.stack import Notified
from benchmarks.pages.tape import FaultCase, Tape, cases, record

PAGE = Path(__file__).parents[2] / "docs" / "pages.md"
LEAF, POWER, ONE = "a leaf switch fails: 32 ports down", "a power feed fails: 24 agents down", "one agent is down"
PORT_DOWN = "a port is down"


def tapes_of(chosen: Sequence[FaultCase]) -> list[Tape]:
    """Return the tapes of these cases, recorded in processes of their own, whose clocks are replaced."""
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        return list(pool.map(record, chosen))


def storms(port_down: Tape) -> list[Storm]:
    """Return many nodes with one cause, and one node alone for comparison."""
    [raised] = [at for (alert, _), at in port_down.raised.items() if alert == "IbPortDown"]

    def leaf(since: float, wall: float) -> str | None:
        return port_down.page_at(max(0.0, raised + since), wall)

    def away(since: float, wall: float) -> str | None:
        return None if since >= 0 else port_down.page_at(0.0, wall)

    return [
        Storm(LEAF, tuple(f"leaf-{number:02}" for number in range(32)), leaf, begins=60),
        Storm(POWER, tuple(f"rack-{number:02}" for number in range(24)), away, begins=90),
        Storm(ONE, ("alone",), away, begins=60),
    ]


def main() -> int:
    """Return 1 if a fault led to another number of notifications (unless one more is excused), or one lacks a text."""
    parser = argparse.ArgumentParser(prog="make pages", description=__doc__)
    parser.add_argument("--only", default="", help="measure only faults whose name contains this text; write no page")
    args = parser.parse_args()
    chosen = [case for case in cases() if args.only in case.title]
    print(f"recording {len(chosen)} cases", file=sys.stderr, flush=True)
    tapes = tapes_of(chosen)
    for tape in tapes:
        if not tape.expected:
            print(f"no verdict: {tape.case.title}", file=sys.stderr)
    ports = next((tape for tape in tapes if tape.case.names == (PORT_DOWN,)), None)
    print("replaying them to Prometheus and Alertmanager", file=sys.stderr, flush=True)
    with ThreadPoolExecutor() as pool:  # side by side, each with its own Prometheus and Alertmanager
        planned = storms(ports) if ports is not None else []
        many, alone = planned[:-1], planned[-1:]
        of_cases = pool.submit(measure, tapes, alone)
        of_many = pool.submit(measure, (), many) if many else of_cases
        outcomes, of_storms = of_cases.result()[0], {**of_many.result()[1], **of_cases.result()[1]}
    if not args.only:
        PAGE.write_text(page(outcomes, of_storms))
    return _report(outcomes, of_storms)


def _report(outcomes: Sequence[NotificationOutcome], of_storms: dict[str, list[Notified]]) -> int:
    wrong = [outcome for outcome in outcomes if not outcome.right]
    for outcome in wrong:
        print(
            f"{outcome.title}: {outcome.pages} of {outcome.expected} notifications, also",
            outcome.others,
            outcome.lacking,
        )
    for title, received in of_storms.items():
        print(f"{title}: {len({each.notification for each in newly_firing(received)})} notification(s)")
    delays = [delay for outcome in outcomes for delay in outcome.delays]
    exact = sum(outcome.exact for outcome in outcomes)
    print(
        f"{len(outcomes)} cases: {exact} exact, {len(outcomes) - len(wrong) - exact} with one more notification that "
        f"is excused, {len(wrong)} wrong; median {median(delays):.0f} s after the verdict"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
