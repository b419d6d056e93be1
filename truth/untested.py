"""What is not injected, and why."""

from __future__ import annotations

from collections.abc import Mapping

UNUSED: Mapping[str, str] = {
    "garbage": "readings that cannot be are dropped before they are readings: tests/nvml",
    "field_types": "the poll reads any type: tests/nvml",
    **dict.fromkeys(("driver_version", "mig"), "is no fault: see the disturbances"),
    "seed": "is another node of the same kind",
}
"""Keys of the simulation."""

UNTESTED: Mapping[str, str] = {
    **dict.fromkeys(
        (
            *("allreduce_unkillable", "gpu_allreduce_wrong", "allreduce_wrong", "allreduce_failing"),
            *("gpu_allreduce_slow", "allreduce_slow", "allreduce_stale"),
        ),
        "no ranks run in this world: they are processes, in real time. See tests/health/checks/test_probe_checks.py",
    ),
    "check_failing": "it tells of a mistake of the agent's own. See tests/health/test_judge.py",
}
"""Checks for which nothing can be injected here."""
