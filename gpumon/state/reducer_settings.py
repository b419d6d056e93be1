"""Settings that `state.reduce` uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpumon.health.catalogue import SHIPPED, Catalogue
from gpumon.health.policy import Policy
from gpumon.model.infiniband import PortPatterns


@dataclass(frozen=True, slots=True, kw_only=True)
class ReducerSettings:
    """The settings from the configuration that `reduce` and the checks use."""

    interval: float = 1.0
    """Seconds between polls."""
    expected: int | None = None
    """Configured number of GPUs; None if the agent learns the expected number."""
    probe_intervals: Mapping[str, float] = field(default_factory=lambda: {"allreduce": 21600.0})
    """Max seconds between scheduled runs of each scheduled probe, by name."""
    probe_gated: bool = False
    """True if a gate command requests the node from the scheduler before each probe run."""
    ports: PortPatterns = PortPatterns()
    """Patterns of network adapters from the configuration."""
    policy: Policy = Policy()
    """Thresholds of checks, and disabled checks, from the configuration."""
    catalogue: Catalogue = SHIPPED
    """Meaning of each Xid code on this host."""

    @property
    def stale_after(self) -> float:
        """Return the age in seconds above which a reading is no longer used."""
        return max(3 * self.interval, 10.0)
