"""Result of a soak: figures, and reasons for a failure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from benchmarks.witness import SCRAPE_LIMIT, Witness

WARM_SECONDS, MIN_SIZES = 120.0, 12
"""Age from which the sizes of a process are compared, and how many of them it takes."""
MAX_GROWTH = 1.0
"""MB a minute. The daemon remembers an hour of what rules look back on, and so grows for an hour."""
MAX_DESCRIPTORS = 4
"""More than at the beginning: a connection or two, and a child that is just being started."""

Figure = tuple[str, str]


@dataclass(frozen=True)
class Size:
    """Memory and descriptors of a process."""

    at: float
    role: str
    pid: int
    megabytes: float
    descriptors: int


def verdict(witness: Witness, sizes: Sequence[Size], left: set[int], log: str) -> tuple[list[Figure], list[str]]:
    """`left`: processes of the agent that outlived it; `log`: the log of the agent and its children."""
    figures = [
        ("scrapes", f"{witness.answered}, slowest {witness.slowest * 1e3:.1f} ms; {witness.refused} refused"),
        ("scrapes over 100 ms", _slow(witness)),
        ("readings of healthy GPUs verified", f"{witness.verified_healthy} times"),
        ("unreadable GPUs verified", f"{witness.verified_hidden} times"),
    ]
    failed = [f"{problem}, {n} times, first: {witness.first[problem]}" for problem, n in witness.problems.items()]
    for role in dict.fromkeys(size.role for size in sizes):
        mine = [size for size in sizes if size.role == role]
        figures.append((role, _held(mine)))
        failed += (f"the {role} {reason}" for reason in _grown(mine))
    tracebacks = [line for line in log.splitlines() if "Traceback" in line or "exception=" in line]
    figures += [("processes left", str(len(left))), ("unhandled exceptions", str(len(tracebacks)))]
    failed += [f"processes left: {sorted(left)}"] if left else []
    failed += [f"an exception: {tracebacks[0][:300]}"] if tracebacks else []
    return figures, failed


def _slow(witness: Witness) -> str:
    starved = sum(scrape.seconds - scrape.starved <= SCRAPE_LIMIT for scrape in witness.slow)
    return f"{len(witness.slow)}" + (f", {starved} of them during CPU starvation" if witness.slow else "")


def _held(sizes: Sequence[Size]) -> str:
    slope = growth(sizes, lambda size: size.megabytes)
    words = "run too short for a growth rate" if slope is None else f"{slope:+.2f} MB a minute"
    descriptors = [size.descriptors for size in sizes]
    return f"{sizes[-1].megabytes:.0f} MB, {words}; {descriptors[0]} descriptors, then {descriptors[-1]}"


def _grown(sizes: Sequence[Size]) -> Iterable[str]:
    slope = growth(sizes, lambda size: size.megabytes)
    if slope is not None and slope > MAX_GROWTH:
        yield f"grew by {slope:.2f} MB a minute"
    if sizes[-1].descriptors > sizes[0].descriptors + MAX_DESCRIPTORS:
        yield f"ended with {sizes[-1].descriptors} descriptors, and began with {sizes[0].descriptors}"


def growth(sizes: Sequence[Size], of: Callable[[Size], float]) -> float | None:
    """Return the growth per minute, the median over all long-lived processes of a role; None without one."""
    slopes = []
    for pid in {size.pid for size in sizes}:
        mine = [size for size in sizes if size.pid == pid]
        warm = [size for size in mine if size.at - mine[0].at >= WARM_SECONDS]
        if len(warm) >= MIN_SIZES:
            slopes.append(
                statistics.linear_regression([size.at / 60 for size in warm], [of(size) for size in warm]).slope
            )
    return statistics.median(slopes) if slopes else None
