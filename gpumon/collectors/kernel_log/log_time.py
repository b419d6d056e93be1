"""From the kernel's stamps to our boot clock, which runs on while the host sleeps and is corrected by NTP."""

from __future__ import annotations

import time
from collections.abc import Callable

from gpumon.clock import boot_clock

DRIFT = 1e-4
"""How far the two come apart at most in a second."""


class KernelClock:
    """Learns from records that were read as they were written."""

    def __init__(self, now: Callable[[], float] = boot_clock) -> None:
        self._now = now
        self._ahead = now() - time.monotonic()
        """Of the boot clock before the stamps."""
        self._learnt_at: float | None = None

    def fresh(self, seconds: float) -> None:
        """A record with this stamp is the newest that there is. It may have waited for us, but is not from later."""
        now = self._now()
        ahead = now - seconds
        if self._learnt_at is not None:
            ahead = min(ahead, self._ahead + (now - self._learnt_at) * DRIFT)
        self._ahead, self._learnt_at = ahead, now

    def at(self, seconds: float) -> float:
        """The boot clock when this stamp was made; never in the future."""
        return min(self._now(), seconds + self._ahead)
