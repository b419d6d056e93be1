"""The current time on three clocks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Now:
    """The current time."""

    at: float
    """Boot clock, for deadlines and durations."""
    wall: float
    """Seconds since the epoch, for display."""
    uptime: float
    """Seconds for which this daemon has run, without the time in which it was stopped."""
