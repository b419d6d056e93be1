"""CHECKS: all checks, causes before the checks that they inhibit. Add a check as a row in the module of its subject."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from gpumon.health.check_row import Check
from gpumon.health.checks import (
    agent,
    clocks,
    fabric,
    gpu,
    history,
    infiniband,
    memory_ecc,
    memory_repair,
    memory_wear,
    node,
    nvlink,
    nvlink_errors,
    pcie,
    power,
    probe,
    probe_limits,
    probe_runs,
    thermal,
    utilization,
    versions,
    work,
    xid,
    xid_applications,
    xid_warnings,
)
from gpumon.health.policy import Limit

SUBJECTS: Mapping[str, ModuleType] = {
    "The node": node,
    "Node history": history,
    "GPUs that do not respond": gpu,
    "Memory wear": memory_wear,
    "Critical Xids and SXids": xid,
    "Memory errors": memory_ecc,
    "Pending repairs": memory_repair,
    "The NVLink fabric": fabric,
    "NVLinks": nvlink,
    "NVLink errors": nvlink_errors,
    "Xids of applications": xid_applications,
    "Other Xids": xid_warnings,
    "PCIe": pcie,
    "Temperature": thermal,
    "Power": power,
    "Clocks": clocks,
    "InfiniBand and RoCE": infiniband,
    "All-reduce runs": probe_runs,
    "All-reduce results": probe,
    "All-reduce thresholds": probe_limits,
    "GPU processes": work,
    "Utilization": utilization,
    "Versions": versions,
    "The agent": agent,
}
"""Module of the checks by heading of the runbook page. Names of modules on one subject begin with the same word."""
_CLASSES = {
    "agent": "agent",
    "fabric": "link",
    "history": "node",
    "infiniband": "network",
    "node": "node",
    "nvlink": "link",
    "probe": "performance",
    "utilization": "job",
    "versions": "node",
    "work": "job",
}
CHECKS: tuple[Check, ...] = tuple(check for subject in SUBJECTS.values() for check in subject.CHECKS)
BY_NAME: Mapping[str, Check] = {check.name: check for check in CHECKS}
LIMITS: Mapping[str, Limit] = {limit.name: limit for check in CHECKS for limit in check.limits}
"""Thresholds by name."""
SUBJECT_OF: Mapping[str, str] = {
    check.name: subject.__name__.rpartition(".")[2].partition("_")[0]
    for subject in SUBJECTS.values()
    for check in subject.CHECKS
}
"""Subject of each check in one word: memory, nvlink, ..."""


def recorded_windows() -> dict[str, float]:
    """Return the seconds to record by metric name: the longest window of all checks that read the metric."""
    seconds: dict[str, float] = {}
    for window in (window for check in CHECKS for window in check.windows):
        seconds[window.metric] = max(window.seconds, seconds.get(window.metric, 0.0))
    return seconds


def class_of(check: str) -> str:
    """Return the value of the label `class` of a check's alerts: agent, hardware, job, link, network, node, ..."""
    return _CLASSES.get(SUBJECT_OF[check], "hardware")
