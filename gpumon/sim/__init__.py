"""A simulated node below pynvml: NVML's C functions, answered from a profile, a scenario file and the time."""

from __future__ import annotations


class SimulationError(ValueError):
    """A profile or scenario that cannot be simulated. The message names the input and the remedy."""
