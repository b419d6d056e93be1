"""A node with no GPU: NVML's C functions, answered from a profile, a scenario file and the time."""

from __future__ import annotations


class SimulationError(ValueError):
    """A profile or scenario that cannot be simulated; the text names the input and the remedy."""
