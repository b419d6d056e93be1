"""Maintenance: a while in which what is wrong with the node calls nobody. Values and pure functions."""

from __future__ import annotations

from dataclasses import dataclass

from gpumon.model import time_window
from gpumon.model.now import Now
from gpumon.model.time_window import Span

MOST_REMEMBERED = 20
"""Maintenances that are known, the one in force among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintenance(Span):
    """One, in force until it has ended."""


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
    return tuple(time_window.over(one, told.wall, told.at) for one in known)


def in_time(known: Known, now: Now, boot_id: str) -> Known:
    """What time has made of the one in force."""
    one = in_force(known)
    if one is None:
        return known
    after = time_window.in_time(one, now, boot_id)
    return known if after is one else (*known[:-1], after)


def wrong_reason(reason: str) -> str:
    """What is wrong with a reason, in words; empty for a good one."""
    return time_window.wrong_reason(reason) if reason.strip() else "A maintenance needs a reason."
