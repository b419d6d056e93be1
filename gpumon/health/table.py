"""CHECKS: all checks, causes before the checks that they inhibit. Add a check as a row in the module of its subject."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gpumon.health.check_row import Check
from gpumon.health.checks import (
    agent,
    clocks,
    fabric,
    gpu,
    history,
    infiniband,
    jobs,
    memory_ecc,
    memory_repair,
    nvlink,
    nvlink_errors,
    pcie,
    power,
    probe,
    probe_limits,
    probe_runs,
    thermal,
    versions,
    work,
    xid,
    xid_warnings,
)
from gpumon.health.policy import Limit


class Subject(NamedTuple):
    """One section of the runbook page, with its checks."""

    heading: str
    name: str
    """Subject in one word: memory, nvlink, ... Several sections can have the same one."""
    area: str
    """Value of the label `class` of the alerts."""
    checks: tuple[Check, ...]


SUBJECTS = (
    Subject("The node", "node", "node", gpu.DRIVER_CHECKS),
    Subject("Node history", "history", "node", history.CHECKS),
    Subject("GPUs that do not respond", "gpu", "hardware", gpu.CHECKS),
    Subject("Memory wear", "memory", "hardware", memory_repair.WEAR_CHECKS),
    Subject("Critical Xids and SXids", "xid", "hardware", xid.CHECKS),
    Subject("Memory errors", "memory", "hardware", memory_ecc.CHECKS),
    Subject("Pending repairs", "memory", "hardware", memory_repair.REPAIR_CHECKS),
    Subject("The NVLink fabric", "fabric", "link", fabric.CHECKS),
    Subject("NVLinks", "nvlink", "link", nvlink.CHECKS),
    Subject("NVLink errors", "nvlink", "link", nvlink_errors.CHECKS),
    Subject("Xids of applications", "xid", "hardware", xid_warnings.APPLICATION_CHECKS),
    Subject("Other Xids", "xid", "hardware", xid_warnings.CHECKS),
    Subject("PCIe", "pcie", "hardware", pcie.CHECKS),
    Subject("Temperature", "thermal", "hardware", thermal.CHECKS),
    Subject("Power", "power", "hardware", power.CHECKS),
    Subject("Clocks", "clocks", "hardware", clocks.CHECKS),
    Subject("InfiniBand and RoCE", "infiniband", "network", infiniband.CHECKS),
    Subject("Probe runs", "probe", "performance", probe_runs.CHECKS),
    Subject("Probe results", "probe", "performance", probe.CHECKS),
    Subject("All-reduce thresholds", "probe", "performance", probe_limits.CHECKS),
    Subject("Jobs", "jobs", "job", jobs.STALL_CHECKS),
    Subject("GPU processes", "work", "job", work.CHECKS),
    Subject("Held GPUs", "jobs", "job", jobs.IDLE_CHECKS),
    Subject("Utilization", "utilization", "job", work.USE_CHECKS),
    Subject("Versions", "versions", "node", versions.CHECKS),
    Subject("The agent", "agent", "agent", agent.CHECKS),
)
SUBJECT_OF: Mapping[str, str] = {check.name: subject.name for subject in SUBJECTS for check in subject.checks}
CHECKS = tuple(check for subject in SUBJECTS for check in subject.checks)
BY_NAME: Mapping[str, Check] = {check.name: check for check in CHECKS}
LIMITS: Mapping[str, Limit] = {limit.name: limit for check in CHECKS for limit in check.limits}
"""Thresholds by name."""


def recorded_windows() -> dict[str, float]:
    """Return the seconds to record by metric name: the longest window of all checks that read the metric."""
    seconds: dict[str, float] = {}
    for window in (window for check in CHECKS for window in check.windows):
        seconds[window.metric] = max(window.seconds, seconds.get(window.metric, 0.0))
    return seconds
