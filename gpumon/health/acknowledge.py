"""What a person may clear: what is latched, and not so now. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from gpumon.health.standing import Health
from gpumon.health.table import BY_NAME
from gpumon.health.verdict import NODE, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which verdicts somebody acknowledges: None is any."""

    check: str | None = None
    device: str | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """What came of it."""

    cleared: tuple[Verdict, ...] = ()
    kept: tuple[tuple[Verdict, str], ...] = ()
    """Those that cannot be, each with the reason in words."""
    stored: bool = True
    """False: the store is out of order, and is told when it can be written again."""
    trouble: str = ""
    """Why nothing was done at all, in words."""


def acknowledged(asked: Asked, health: Health, here: Collection[str]) -> Acknowledged:
    """What can be cleared of what was asked for, and of what follows from that. `here`: the GPUs there are, by uuid.

    What follows has said nothing by itself: left alone, it would page for a fault that somebody has just acknowledged.
    """
    if not health.judged:
        return Acknowledged(trouble="The agent has not judged the node yet.")
    found = [
        (one, _why_not(one, here, named=asked.check is not None))
        for one in health.verdicts
        if asked.check in {None, one.check} and asked.device in {None, one.device}
    ]
    named = [one for one, why_not in found if not why_not]
    follows = (other for one in named for other in health.following(one) if not _why_not(other, here))
    cleared = {one.key: one for one in (*named, *follows)}
    return Acknowledged(cleared=tuple(cleared.values()), kept=tuple(one for one in found if one[1]))


def _why_not(verdict: Verdict, here: Collection[str], *, named: bool = False) -> str:
    """Why a person cannot clear it; empty when that is possible. `named`: its check was, it is not one of many."""
    check = BY_NAME.get(verdict.check)
    if check is not None and check.acceptable and verdict.under is None:
        return "" if named else f"`gpumon ack {verdict.check}` would say that it is as it should be."
    if verdict.active:
        return "It is so now: it can be acknowledged when it is so no more."
    if check is not None and check.latch is None and verdict.well and verdict.device in {NODE, *here}:
        return "It is not latched: it ends by itself when it has been well for a while."
    return ""
