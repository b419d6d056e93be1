"""What a verdict asks for, in a document: what has been done since it was last so is not asked for again. Pure."""

from __future__ import annotations

from typing import Any

from gpumon.health.terms import ACTIONS, Action, Way
from gpumon.health.verdict import Verdict
from gpumon.outputs.words import rfc3339

ANSWERED = {
    Way.REBOOT: frozenset({Action.RESTART, Action.RESET, Action.REBOOT}),
    Way.RESET: frozenset({Action.RESTART, Action.RESET}),
}
"""What each repair does, or more than that; what asks for a person, or for another part, neither does."""


def asked(one: Verdict, boot_id: str, booted: float | None) -> dict[str, Any]:
    """Who obeys it would repair in a loop, for a repair has to prove itself before the verdict goes.

    `boot_id`, `booted`: of this boot, and when it began in seconds since the epoch.
    """
    way = repaired(one, boot_id)
    if way is None:
        return {"action": one.action.value, "action_words": ACTIONS[one.action], "repair": None, "repaired": None}
    after = one.begun_at or 0.0 if way is Way.RESET else 0.0
    return {
        "action": Action.NONE.value,
        "action_words": if_it_comes_back(one),
        "repair": way.value,
        "repaired": None if booted is None else rfc3339(round(booted + after)),
    }


def repaired(one: Verdict, boot_id: str) -> Way | None:
    """What was done since it was last so, where that is what it asked for, or more."""
    way = Way.REBOOT if one.boot_id != boot_id else Way.RESET if _was_reset(one) else None
    return way if way is not None and one.action in ANSWERED[way] else None


def _was_reset(one: Verdict) -> bool:
    """In the boot in which it was last so. A reset before it was raised, or that did not help, was none for it."""
    raised_at = one.since_at if one.since_boot == one.boot_id else 0.0
    return not one.active and one.begun_at is not None and one.begun_at > max(one.seen_at, raised_at)


def if_it_comes_back(one: Verdict) -> str:
    return f"if it comes back, {ACTIONS[one.action]}"
