"""What folding is given besides the Report and the arrival: the moment, and what the configuration says."""

from __future__ import annotations

from dataclasses import dataclass

from gpumon.alerts.rules import Rule
from gpumon.health.catalogue import SHIPPED, Catalogue


@dataclass(frozen=True, slots=True)
class Moment:
    """Now, on three clocks."""

    at: float
    """Boot clock: for `for` and windows."""
    wall: float
    """Seconds since the epoch, for display."""
    lived: float
    """Boot clock less the time in which this daemon was stopped: what it could not hear then is no silence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the configuration says about folding."""

    interval: float = 1.0
    expected: int | None = None
    rules: tuple[Rule, ...] = ()
    catalogue: Catalogue = SHIPPED
    """What Xids mean, on this host."""

    @property
    def stale_after(self) -> float:
        """Seconds after which a reading is no longer true."""
        return max(3 * self.interval, 10.0)
