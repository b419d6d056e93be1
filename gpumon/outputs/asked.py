"""What a verdict asks for, in a document: what has been done since it was last so is not asked for again. Pure."""

from __future__ import annotations

from typing import Any

from gpumon.health.terms import ACTIONS, Action, Way
from gpumon.health.verdict import Verdict
from gpumon.outputs.words import rfc3339

ANSWERED = frozenset({Action.RESTART, Action.RESET, Action.REBOOT})
"""By a reboot; what asks for a person, or for another part, is not."""


def asked(one: Verdict, boot_id: str, booted: float | None) -> dict[str, Any]:
    """Who obeys it would reboot in a loop, for a reboot has to prove itself before the verdict goes.

    `boot_id`, `booted`: of this boot, and when it began in seconds since the epoch.
    """
    if not rebooted(one, boot_id):
        return {"action": one.action.value, "action_words": ACTIONS[one.action], "repair": None, "repaired": None}
    return {
        "action": Action.NONE.value,
        "action_words": if_it_comes_back(one),
        "repair": Way.REBOOT.value,
        "repaired": None if booted is None else rfc3339(round(booted)),
    }


def rebooted(one: Verdict, boot_id: str) -> bool:
    """The node was, since it was last so, and that is what it asked for, or more."""
    return one.boot_id != boot_id and one.action in ANSWERED


def if_it_comes_back(one: Verdict) -> str:
    return f"if it comes back, {ACTIONS[one.action]}"
