"""Convert time stamps of the kernel log to CLOCK_BOOTTIME, which counts suspended time and is adjusted by NTP."""

from __future__ import annotations

import time
from collections.abc import Callable

from gpumon.clock import boot_clock

DRIFT = 1e-4
"""Maximum drift that is assumed between CLOCK_BOOTTIME and the clock of the kernel log, in seconds per second."""


class KernelClock:
    """Converts time stamps of the kernel log to CLOCK_BOOTTIME by an offset, which `measure` updates."""

    def __init__(self, now: Callable[[], float] = boot_clock) -> None:
        self._now = now
        self._ahead = now() - time.monotonic()
        """Seconds by which CLOCK_BOOTTIME is ahead of the time stamps."""
        self._measured_at: float | None = None

    def measure(self, seconds: float) -> None:
        """Update the offset. `seconds`: time stamp of a record that was just logged.

        After the first call the offset grows by at most DRIFT per second, because the record may have waited before it
        was read.
        """
        now = self._now()
        ahead = now - seconds
        if self._measured_at is not None:
            ahead = min(ahead, self._ahead + (now - self._measured_at) * DRIFT)
        self._ahead, self._measured_at = ahead, now

    def to_boot_clock(self, seconds: float) -> float:
        """Return CLOCK_BOOTTIME for a time stamp of the kernel log, both in seconds.

        The result is never in the future.
        """
        return min(self._now(), seconds + self._ahead)
