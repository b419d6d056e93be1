"""Now, on every clock that counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Now:
    """Now, on three clocks."""

    at: float
    """Boot clock: for `for` and windows."""
    wall: float
    """Seconds since the epoch, for display."""
    uptime: float
    """Boot clock less the time in which this daemon was stopped: what it could not hear then is no silence."""
