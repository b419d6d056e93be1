"""Points in time on the clocks of the host."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

from gpumon.clock import boot_clock


class Instant(NamedTuple):
    """A point in time on two clocks. The boot clock is for durations, the wall clock for display."""

    boot_id: str
    """Boot to which `at` belongs; empty for an unknown earlier boot."""
    at: float
    """Boot clock in seconds."""
    wall: float
    """Wall time in seconds since the epoch, as the wall clock was set then."""

    @classmethod
    def now(cls, boot_id: str) -> Instant:
        """Return the present. `boot_id`: the current boot."""
        return cls(boot_id, boot_clock(), time.time())

    def on_clock(self, now: Instant) -> float:
        """Return the wall time of this instant, in seconds since the epoch, as the wall clock is set now.

        An instant of an earlier boot is returned as at most the start of this boot, because that wall clock may have
        been wrong.
        """
        if self.boot_id == now.boot_id:
            return now.wall - (now.at - self.at)
        return min(self.wall, now.wall - now.at)

    def at_or_boot(self, boot_id: str) -> float:
        """Return the boot clock of this instant in the boot `boot_id`; 0, its start, if it was in an earlier boot."""
        return self.at if self.boot_id == boot_id else 0.0


@dataclass(frozen=True, slots=True)
class Now:
    """The current time on three clocks, read together and passed to pure functions."""

    at: float
    """Boot clock (CLOCK_BOOTTIME) in seconds, for deadlines and durations."""
    wall: float
    """Wall time in seconds since the epoch, for display."""
    uptime: float
    """Seconds that this daemon has run, without the time in which it was stopped (SIGSTOP, suspend)."""

    def wall_at(self, at: float) -> float:
        """Convert a boot clock time of this boot to seconds since the epoch."""
        return self.wall - (self.at - at)
