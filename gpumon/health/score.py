"""Score of the node: 100 minus the faults of the last 30 days. Pure.

    score = 100 - sum over raised verdicts of cost x (1 - age / 30 days), never below 0

A verdict of level fail costs 20 and a verdict of level warn 4, but nothing if its alert has severity info. Verdicts of
one check, device and level cost once per day. The age of an open verdict is 0. Inhibited verdicts cost nothing, nor do
verdicts that were raised in maintenance, unless they are still open after the maintenance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpumon.health.check_row import DAY, Paging
from gpumon.health.facts import Facts
from gpumon.health.table import BY_NAME
from gpumon.health.verdict import FAIL, WARN, Key, Level, Verdict, VerdictChange, VerdictTransition

BEST = 100.0
WINDOW = 30 * DAY
COSTS: Mapping[Level, float] = {FAIL: 20.0, WARN: 4.0}


def score(transitions: Iterable[VerdictTransition], open_: Mapping[Key, Verdict], facts: Facts) -> float:
    """Return the score of the node: 0 to 100, rounded to a tenth. `open_`: the open verdicts."""
    ages: dict[tuple[Key, Level, int], float] = {}
    for transition in transitions:
        age = facts.age(transition)
        here = open_.get(transition.verdict.key)
        lasts = here is not None and here.episode == transition.verdict.episode
        planned = transition.muted and not (lasts and facts.maintenance is None)
        if _counts(transition) and not planned and age < WINDOW:
            slot = (transition.verdict.key, transition.verdict.level, int(transition.verdict.raised.wall // DAY))
            ages[slot] = min(0.0 if lasts else age, ages.get(slot, WINDOW))
    lost = sum(COSTS[level] * (1 - age / WINDOW) for (_, level, _), age in ages.items())
    return round(max(0.0, BEST - lost), 1)


def _counts(transition: VerdictTransition) -> bool:
    verdict = transition.verdict
    check = BY_NAME.get(verdict.check)
    informs = verdict.level is WARN and check is not None and check.pages is Paging.NEVER
    # When a GPU reports its uuid, its verdict is raised again under the uuid: that is not a new fault.
    again = transition.change is VerdictChange.RAISED and verdict.raised.wall < transition.time.wall
    return (
        transition.change in {VerdictChange.RAISED, VerdictChange.CHANGED}
        and verdict.level in COSTS
        and not (informs or again or verdict.inhibited_by)
    )
