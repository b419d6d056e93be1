"""A span: a while that somebody asked for, with an end, that goes on over restarts. Values and pure functions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from gpumon.model.now import Now

ASKERS = ("api", "command")
LONGEST_REASON = 200
"""Characters."""
STEP_SECONDS = 1.0
"""By how much the wall clock must have been stepped before the end by that clock is told anew."""
SETTLED_SECONDS = 600.0
"""Uptime from which on a wall clock that says that the end has passed is believed: NTP has had its time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One, in force until it has ended."""

    began: float
    """Seconds since the epoch, as the wall clock was set then."""
    began_at: float
    """The same on CLOCK_BOOTTIME; below 0 when that was before the boot."""
    until: float
    """When it ends by itself, in seconds since the epoch, as the wall clock is set now."""
    deadline: float
    """The same on CLOCK_BOOTTIME, which counts: no step of the wall clock ends or prolongs it."""
    boot_id: str
    """Of the boot in which that clock runs; over a reboot the wall clock counts, as soon as it can be true."""
    reason: str
    """Why, in the words of who asked."""
    by: str
    """One of ASKERS."""
    ended: float | None = None
    """When it ended, in seconds since the epoch; None while it is in force."""

    @property
    def key(self) -> object:
        """No two have the same."""
        return self.began

    @property
    def seconds(self) -> float:
        """How long it is to last in all."""
        return self.deadline - self.began_at


S = TypeVar("S", bound=Span)


def over(one: S, wall: float, at: float) -> S:
    """Ended at this moment, on both clocks, unless it had ended before."""
    if one.ended is not None:
        return one
    return replace(one, ended=min(wall, one.until), deadline=min(at, one.deadline))


def in_time(one: S, now: Now, boot_id: str) -> S:
    """What time has made of it: it expires, it goes on over a reboot, and a clock that was stepped is told of it."""
    if one.ended is not None or _is_undated(one, now, boot_id):
        return one
    one = _moved(one, now, boot_id)
    if now.at >= one.deadline:
        return replace(one, ended=one.until)
    until = now.wall + one.deadline - now.at
    return replace(one, until=until) if abs(until - one.until) > STEP_SECONDS else one


def _is_undated(one: Span, now: Now, boot_id: str) -> bool:
    """Whether the wall clock of this boot, which may not have been set yet, cannot tell when it ends.

    A clock that is behind its beginning is wrong, and one that is past its end may be: it goes on until the clock was
    set, or time has gone by.
    """
    if one.boot_id == boot_id:
        return False
    left = one.until - now.wall
    return now.at < one.seconds if left > one.seconds + STEP_SECONDS else left <= 0 and now.at < SETTLED_SECONDS


def _moved(one: S, now: Now, boot_id: str) -> S:
    """On the clock of this boot. Where the wall clock was never set, its own length after the boot is enough."""
    if one.boot_id == boot_id:
        return one
    left = one.until - now.wall
    deadline = now.at + left if left <= one.seconds + STEP_SECONDS else one.seconds
    return replace(one, boot_id=boot_id, began_at=deadline - one.seconds, deadline=deadline)


def wrong_reason(reason: str) -> str:
    """What is wrong with a reason, in words; empty for a good one, and for none."""
    if len(reason) > LONGEST_REASON:
        return f"The reason has {len(reason)} characters, and {LONGEST_REASON} at most are kept."
    return "" if reason.isprintable() else "The reason has characters that cannot be printed."


def wrong_length(seconds: float, most: float, setting: str) -> str:
    """What is wrong with asking for so long, in words; empty for nothing. `setting` names what bounds it."""
    return "" if 0 < seconds <= most else f"{seconds:.10g} s is not between 0 and {setting}, which is {most:.10g}."


ASK_FOR_LESS = "Ask for less, or have the setting raised."
