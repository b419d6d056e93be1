"""The current time on three clocks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Now:
    """The current time on three clocks, read together and passed to pure functions."""

    at: float
    """Boot clock (CLOCK_BOOTTIME) in seconds, for deadlines and durations."""
    wall: float
    """Wall time in seconds since the epoch, for display."""
    uptime: float
    """Seconds that this daemon has run, without the time in which it was stopped (SIGSTOP, suspend)."""
