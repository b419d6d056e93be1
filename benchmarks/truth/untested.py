"""Keys of the simulation and checks without a row, with the reason."""

from __future__ import annotations

from collections.abc import Mapping

UNUSED: Mapping[str, str] = {
    "garbage": "implausible values are dropped in the sampler: tests/collectors/nvml",
    "field_types": "the poll reads any type: tests/collectors/nvml",
    **dict.fromkeys(("driver_version", "mig"), "is no fault: see benign.py"),
    "peer_access": "adds evidence to a slow run, and raises no verdict: tests/probe",
    "seed": "is another node of the same kind",
}
"""Keys of the simulation."""

UNTESTED: Mapping[str, str] = {
    "gpumon_history_unread": "needs a store that cannot be read at startup. See tests/health/checks/test_past.py",
    "gpumon_notifications_failing": "needs a receiver. See tests/services/test_senders.py",
    "gpumon_check_failing": "reports a bug in a check. See tests/health/test_evaluation.py",
}
"""Checks without a fault in the table."""
