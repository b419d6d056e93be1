"""What folding is given besides the Report, the arrival and the moment: what the configuration says."""

from __future__ import annotations

from dataclasses import dataclass

from gpumon.health.catalogue import SHIPPED, Catalogue
from gpumon.health.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class ReducerSettings:
    """What the configuration says about folding."""

    interval: float = 1.0
    expected: int | None = None
    probe_interval: float = 21600.0
    """Seconds between scheduled runs of the all-reduce."""
    probe_gated: bool = False
    """A command asks the scheduler for the node before each."""
    policy: Policy = Policy()
    """What an operator decided about checks."""
    catalogue: Catalogue = SHIPPED
    """What Xids mean, on this host."""

    @property
    def stale_after(self) -> float:
        """Seconds after which a reading is no longer true."""
        return max(3 * self.interval, 10.0)
