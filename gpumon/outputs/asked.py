"""What a verdict asks for, in a document: what has been done since it was last so is not asked for again. Pure."""

from __future__ import annotations

from typing import Any

from gpumon.health.answered import repaired
from gpumon.health.terms import ACTIONS, Action, Way
from gpumon.health.verdict import Verdict
from gpumon.outputs.words import rfc3339


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


def if_it_comes_back(one: Verdict) -> str:
    return f"if it comes back, {ACTIONS[one.action]}"
