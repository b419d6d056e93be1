"""Maintenance: a while in which what is wrong with the node calls nobody. Values and pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpumon.moment import Moment

ASKERS = ("api", "command")
MOST_REMEMBERED = 20
"""Maintenances that are known, the one in force among them."""
LONGEST_REASON = 200
"""Characters."""
STEP_SECONDS = 1.0
"""By how much the wall clock must have been stepped before the end by that clock is told anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintenance:
    """One, in force until it has ended."""

    began: float
    """Seconds since the epoch; no two are the same."""
    until: float
    """When it ends by itself, in seconds since the epoch, as the wall clock is set now."""
    deadline: float
    """The same on CLOCK_BOOTTIME, which counts: no step of the wall clock ends or prolongs it."""
    boot_id: str
    """Of the boot in which that clock runs; over a reboot the wall clock counts."""
    reason: str
    """Why, in the words of who asked."""
    by: str
    """One of ASKERS."""
    ended: float | None = None
    """When it ended, in seconds since the epoch; None while it is in force."""

    def covers(self, wall: float) -> bool:
        """Whether it was in force then, in seconds since the epoch."""
        return self.began <= wall <= (self.until if self.ended is None else self.ended)


@dataclass(frozen=True, slots=True)
class MaintenanceEnded:
    """It was ended before its time."""

    wall: float


Known = tuple[Maintenance, ...]
"""The newest last: only that one can be in force."""


def in_force(known: Known) -> Maintenance | None:
    return known[-1] if known and known[-1].ended is None else None


def covered(known: Sequence[Maintenance], wall: float) -> bool:
    """Whether the node was in maintenance then, in seconds since the epoch: for what was planned is no fault."""
    return any(one.covers(wall) for one in known)


def begun(known: Known, one: Maintenance) -> Known:
    """It takes the place of the one in force."""
    return (*ended(known, one.began), one)[-MOST_REMEMBERED:]


def ended(known: Known, wall: float) -> Known:
    """Nothing is in force any more."""
    return tuple(one if one.ended is not None else replace(one, ended=min(wall, one.until)) for one in known)


def in_time(known: Known, now: Moment, boot_id: str) -> Known:
    """What time has made of it: it expires, it goes on over a reboot, and a clock that was stepped is told of it."""
    one = in_force(known)
    if one is None:
        return known
    one = _moved(one, now, boot_id)
    if now.at >= one.deadline:
        return (*known[:-1], replace(one, ended=one.until))
    until = now.wall + one.deadline - now.at
    if abs(until - one.until) > STEP_SECONDS:
        one = replace(one, until=until)
    return known if one is known[-1] else (*known[:-1], one)


def _moved(one: Maintenance, now: Moment, boot_id: str) -> Maintenance:
    """On the clock of this boot. A wall clock that has not been set yet must not prolong it beyond its own length."""
    if one.boot_id == boot_id:
        return one
    left = min(one.until - now.wall, one.until - one.began)
    return replace(one, boot_id=boot_id, deadline=now.at + left)


def wrong_reason(reason: str) -> str:
    """What is wrong with a reason, in words; empty for a good one."""
    if not reason.strip():
        return "A maintenance needs a reason."
    if len(reason) > LONGEST_REASON:
        return f"The reason has {len(reason)} characters, and {LONGEST_REASON} at most are kept."
    return "" if reason.isprintable() else "The reason has characters that cannot be printed."
