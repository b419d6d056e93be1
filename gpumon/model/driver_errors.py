"""Table of the errors that NVIDIA's driver writes to the kernel log without naming a device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class DriverError(NamedTuple):
    """One kind of error of the driver, recognised by its kernel message."""

    message: str
    """Regular expression for the whole message after "NVRM:" and, if there is one, the number of a GPU."""
    meaning: str
    action: str


NVLINK_DISCOVERY = 1
"""Code of the error that the driver cannot find out which NVLinks lead to which GPU."""
_AFTER_XID = "see the Xid and the recovery action that the driver reports with it"
DRIVER_ERRORS: Mapping[int, DriverError] = {
    NVLINK_DISCOVERY: DriverError(
        r"knvlink(?:DiscoverPostRxDetLinks_\w+: Getting peer\d+'s postRxDetLinkMask failed!"
        r"|UpdatePostRxDetectLinkMask_\w+: Failed to update Rx Detect Link mask!)",
        "The driver cannot discover the NVLinks",
        "if driver calls do not return: drain the node and reboot it",
    ),
    2: DriverError(
        r"\w+: (?:Assertion failed: )?Back to back GSP RPC timeout detected! GPU marked for reset.{0,200}",
        "A GPU's system processor (GSP) does not answer, and the driver marked the GPU for reset",
        _AFTER_XID,
    ),
    3: DriverError(
        r"\w+: (?:Assertion|Check) failed: Reset required \[NV_ERR_RESET_REQUIRED\].{0,200}",
        "The driver refuses a call because a GPU must be reset first",
        _AFTER_XID,
    ),
    4: DriverError(
        r"krcWatchdog_\w+: RC watchdog: GPU is probably locked!.{0,100}",
        "A GPU does not execute work (the driver's watchdog)",
        _AFTER_XID,
    ),
    5: DriverError(
        r"nvGpuOpsReportFatalError: uvm encountered global fatal error 0x[0-9a-f]+, requiring os reboot to recover\.?",
        "The driver for unified memory (nvidia-uvm) failed on all GPUs: no new CUDA program can start",
        "drain the node and reboot it",
    ),
    6: DriverError(
        r"The NVIDIA probe routine failed for \d+ device\(s\)\.",
        "The driver was loaded, but could not use all GPUs",
        "see the lines before it in the kernel log: `journalctl -k -g NVRM`",
    ),
    7: DriverError(
        r"\w+: Abrupt nvidia-imex daemon shutdown detected, .{0,100}",
        "The IMEX daemon ended while GPUs shared memory with other nodes",
        "restart nvidia-imex, then the jobs that use its domain",
    ),
}
"""Errors of the driver, by code. The codes are gpumon's own, because the driver logs none."""
_UNKNOWN = DriverError("", "The driver reported an error that is not in this version's table", _AFTER_XID)


def driver_error(code: int) -> DriverError:
    """Return the row for an error code; a generic row if this version of the agent does not define the code."""
    return DRIVER_ERRORS.get(code, _UNKNOWN)
