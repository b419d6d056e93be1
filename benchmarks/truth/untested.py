"""What is not injected, and why."""

from __future__ import annotations

from collections.abc import Mapping

UNUSED: Mapping[str, str] = {
    "garbage": "readings that cannot be are dropped before they are readings: tests/nvml",
    "field_types": "the poll reads any type: tests/nvml",
    **dict.fromkeys(("driver_version", "mig"), "is no fault: see the disturbances"),
    "peer_access": "is evidence beside a slow run, and no verdict by itself: tests/probe",
    "seed": "is another node of the same kind",
}
"""Keys of the simulation."""

UNTESTED: Mapping[str, str] = {
    "gpumon_history_unread": "a store that cannot be read from the start. See tests/health/checks/test_past.py",
    **dict.fromkeys(
        ("gpu_busy", "allreduce_bandwidth_low"), "it is off until an operator sets its limit. See tests/health/checks"
    ),
    "gpu_idle": "it takes an hour. See tests/health/checks/test_utilization_checks.py",
    "allreduce_latency_high": "a made-up run has no latency. See tests/health/checks/test_probe_limit_checks.py",
    "gpumon_check_failing": "it tells of a mistake of the agent's own. See tests/health/test_evaluation.py",
}
"""Checks for which nothing can be injected here."""
