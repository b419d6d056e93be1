"""A hold: a while in which no probe runs, because somebody is about to use the GPUs. Values and pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpumon.model import time_window
from gpumon.model.durations import utc
from gpumon.model.now import Now
from gpumon.model.time_window import Span

MOST_REMEMBERED = 20
"""Holds that have ended and are known still."""
MOST_HELD = 1000
"""Holds in force at once: more are refused."""
LONGEST_OWNER = 100
"""Characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold(Span):
    """One, in force until it has ended."""

    owner: str = ""
    """For whom, such as the number of a job; empty for nobody in particular. Each has one at most."""

    @property
    def key(self) -> object:
        return (self.began, self.owner)


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldEnded:
    """The one of this owner was ended before its time."""

    owner: str
    wall: float
    at: float
    """The same on CLOCK_BOOTTIME."""


Holds = tuple[Hold, ...]
"""The newest last."""


def in_force(known: Holds) -> Holds:
    return tuple(one for one in known if one.ended is None)


def begun(known: Holds, one: Hold) -> Holds:
    """It takes the place of its owner's."""
    before = ended(known, HoldEnded(owner=one.owner, wall=one.began, at=one.began_at))
    over = [each for each in before if each.ended is not None][:-MOST_REMEMBERED]
    return (*(each for each in before if each not in over), one)


def ended(known: Holds, told: HoldEnded) -> Holds:
    return tuple(time_window.over(one, told.wall, told.at) if one.owner == told.owner else one for one in known)


def in_time(known: Holds, now: Now, boot_id: str) -> Holds:
    """What time has made of them."""
    after = tuple(time_window.in_time(one, now, boot_id) for one in known)
    return known if all(one is was for one, was in zip(after, known, strict=True)) else after


def wrong_owner(owner: str) -> str:
    """What is wrong with the name of an owner, in words; empty for a good one, and for none."""
    if len(owner) > LONGEST_OWNER:
        return f"The owner has {len(owner)} characters, and {LONGEST_OWNER} at most are kept."
    return "" if owner.isprintable() else "The owner has characters that cannot be printed."


def hint(held: Sequence[Hold]) -> str:
    """Who keeps probes away, until when and why, and what to do about it; empty when nobody does."""
    if not held:
        return ""
    last = max(held, key=lambda one: one.until)
    others = f", and {len(held) - 1} more" if len(held) > 1 else ""
    who = f"{last.owner} (by {last.by})" if last.owner else last.by
    why = f": {last.reason.rstrip('.')}" if last.reason else ""
    until = utc(last.until).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"Held until {until} by {who}{others}{why}. Run again then, or end it with `{unhold(last.owner)}`."


def unhold(owner: str) -> str:
    """The command that ends a hold."""
    return f"gpumon probe unhold --owner {owner}" if owner else "gpumon probe unhold"
