"""The node's score: 100 less what went wrong in the last 30 days. Pure.

    score = 100 - sum over raised verdicts of cost x (1 - age / 30 days), never below 0

A verdict of level fail costs 20, of level warn 4, one for information nothing. The same verdict costs once a day, as
long as it is there as if it were new. What follows from another verdict costs nothing, nor does what was raised in
maintenance, unless it is there still when that has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpumon.health.check import DAY
from gpumon.health.facts import Facts
from gpumon.health.table import BY_NAME
from gpumon.health.terms import FAIL, WARN, Level
from gpumon.health.verdict import Key, Verdict, VerdictChange, VerdictTransition

BEST = 100.0
WINDOW = 30 * DAY
COSTS: Mapping[Level, float] = {FAIL: 20.0, WARN: 4.0}


def score(transitions: Iterable[VerdictTransition], open_: Mapping[Key, Verdict], facts: Facts) -> float:
    """0 to 100, to a tenth."""
    ages: dict[tuple[Key, Level, int], float] = {}
    for one in transitions:
        age = facts.age(one)
        here = open_.get(one.verdict.key)
        lasts = here is not None and here.episode == one.verdict.episode
        planned = one.muted and not (lasts and facts.maintenance is None)
        if _counts(one) and not planned and age < WINDOW:
            slot = (one.verdict.key, one.verdict.level, int(one.verdict.since // DAY))
            ages[slot] = min(0.0 if lasts else age, ages.get(slot, WINDOW))
    lost = sum(COSTS[level] * (1 - age / WINDOW) for (_, level, _), age in ages.items())
    return round(max(0.0, BEST - lost), 1)


def _counts(transition: VerdictTransition) -> bool:
    verdict = transition.verdict
    check = BY_NAME.get(verdict.check)
    informs = verdict.level is WARN and check is not None and not check.pages
    again = (
        transition.change is VerdictChange.RAISED and verdict.since < transition.wall
    )  # a GPU told its name: it goes on
    return (
        transition.change in {VerdictChange.RAISED, VerdictChange.CHANGED}
        and verdict.level in COSTS
        and not (informs or again or verdict.under)
    )
