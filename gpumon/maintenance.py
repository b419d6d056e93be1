"""Maintenance: a while in which what is wrong with the node calls nobody. Values and pure functions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpumon.moment import Moment

ASKERS = ("api", "command")
MOST_REMEMBERED = 20
"""Maintenances that are known, the one in force among them."""
LONGEST_REASON = 200
"""Characters."""
STEP_SECONDS = 1.0
"""By how much the wall clock must have been stepped before the end by that clock is told anew."""
SETTLED_SECONDS = 600.0
"""Uptime from which on a wall clock that says that the end has passed is believed: NTP has had its time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintenance:
    """One, in force until it has ended."""

    began: float
    """Seconds since the epoch, as the wall clock was set then; no two are the same."""
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
    def seconds(self) -> float:
        """How long it is to last in all."""
        return self.deadline - self.began_at


@dataclass(frozen=True, slots=True)
class MaintenanceEnded:
    """It was ended before its time."""

    wall: float
    at: float
    """The same on CLOCK_BOOTTIME."""


Known = tuple[Maintenance, ...]
"""The newest last: only that one can be in force."""


def in_force(known: Known) -> Maintenance | None:
    return known[-1] if known and known[-1].ended is None else None


def begun(known: Known, one: Maintenance) -> Known:
    """It takes the place of the one in force."""
    return (*ended(known, MaintenanceEnded(one.began, one.began_at)), one)[-MOST_REMEMBERED:]


def ended(known: Known, told: MaintenanceEnded) -> Known:
    """Nothing is in force any more."""
    return tuple(one if one.ended is not None else _over(one, told) for one in known)


def _over(one: Maintenance, told: MaintenanceEnded) -> Maintenance:
    return replace(one, ended=min(told.wall, one.until), deadline=min(told.at, one.deadline))


def in_time(known: Known, now: Moment, boot_id: str) -> Known:
    """What time has made of it: it expires, it goes on over a reboot, and a clock that was stepped is told of it."""
    one = in_force(known)
    if one is None or is_undated(one, now, boot_id):
        return known
    one = _moved(one, now, boot_id)
    if now.at >= one.deadline:
        return (*known[:-1], replace(one, ended=one.until))
    until = now.wall + one.deadline - now.at
    if abs(until - one.until) > STEP_SECONDS:
        one = replace(one, until=until)
    return known if one is known[-1] else (*known[:-1], one)


def is_undated(one: Maintenance, now: Moment, boot_id: str) -> bool:
    """Whether the wall clock of this boot, which may not have been set yet, cannot tell when it ends.

    A clock that is behind its beginning is wrong, and one that is past its end may be: it goes on until the clock was
    set, or time has gone by.
    """
    if one.boot_id == boot_id:
        return False
    left = one.until - now.wall
    return now.at < one.seconds if left > one.seconds + STEP_SECONDS else left <= 0 and now.at < SETTLED_SECONDS


def _moved(one: Maintenance, now: Moment, boot_id: str) -> Maintenance:
    """On the clock of this boot. Where the wall clock was never set, its own length after the boot is enough."""
    if one.boot_id == boot_id:
        return one
    left = one.until - now.wall
    deadline = now.at + left if left <= one.seconds + STEP_SECONDS else one.seconds
    return replace(one, boot_id=boot_id, began_at=deadline - one.seconds, deadline=deadline)


def wrong_reason(reason: str) -> str:
    """What is wrong with a reason, in words; empty for a good one."""
    if not reason.strip():
        return "A maintenance needs a reason."
    if len(reason) > LONGEST_REASON:
        return f"The reason has {len(reason)} characters, and {LONGEST_REASON} at most are kept."
    return "" if reason.isprintable() else "The reason has characters that cannot be printed."
