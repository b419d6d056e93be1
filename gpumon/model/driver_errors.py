"""Errors that drivers of GPUs and of network adapters write to the kernel log without a number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple


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


class NicError(NamedTuple):
    """One kind of network adapter error, recognised by its kernel message."""

    message: str
    """Regular expression for the whole kernel message, without the source location that the driver prints before it."""
    meaning: str
    fatal: bool
    """True for a failure, False for a warning."""
    action: Literal["none", "reboot", "inspect"]
    """Recommended action, one of the actions of verdicts."""


NIC_ERRORS: Mapping[int, NicError] = {
    1: NicError(
        r"device's health compromised(?: - reached miss count)?|health recovery flow aborted(?:[, ][\w ,.]{0,100})?",
        "The adapter's firmware does not answer",
        fatal=True,
        action="reboot",
    ),
    2: NicError(
        r"(?:cmd\[\d+\]: )?\w+\(0x[0-9a-f]+\) timeout\..{0,100}",
        "The adapter does not answer a command",
        fatal=True,
        action="reboot",
    ),
    # Syndromes of the firmware, which the driver logs by their names (Linux, mlx5/core/health.c).
    7: NicError(
        r"synd 0x[0-9a-f]+: (?:unrecoverable hardware error|HW fatal error|irisc not responding"
        r"|firmware CRC error|ICM fetch PCI (?:data poisoned )?error|async EQ buffer overrun|EQ error"
        r"|Invalid EQ referenced|FFSER error|Trust lockdown error)|Fatal error \d+ detected|PCI slot is unavailable",
        "The adapter's hardware or firmware failed",
        fatal=True,
        action="reboot",
    ),
    8: NicError(
        r"Health issue observed, .{0,200}|synd 0x[0-9a-f]+: firmware internal error",
        "The adapter's firmware reports a problem",
        fatal=False,
        action="inspect",
    ),
    3: NicError(
        r"High temperature on sensors? with bit set[\w ,.]{0,80}|synd 0x[0-9a-f]+: High temperature",
        "The adapter is too hot",
        fatal=True,
        action="inspect",
    ),
    # Not a failure: the port works until its transceiver shuts down, for which there is the check ib_port_down.
    6: NicError(
        r"Port module event(?:\[error\])?: module \d+, [\w /]+, High Temperature",
        "The adapter's transceiver is too hot",
        fatal=False,
        action="inspect",
    ),
    4: NicError(
        r"Detected insufficient power on the PCIe slot(?: \(\d+W\))?\.?",
        "The slot gives the adapter too little power",
        fatal=False,
        action="none",
    ),
    5: NicError(
        r"The device didn't send any completion for admin cmd .{0,200}|Admin queue is closed"
        r"|Wait for completion \(polling\) timeout|Reset indication didn't turn o(?:n|ff)",
        "The EFA device does not answer its driver",
        fatal=True,
        action="reboot",
    ),
}
"""Errors of network adapters, by code. The codes are gpumon's own, because the drivers log none. Power messages also
appear at each boot of healthy adapters.

Not in the table: failed ACCESS_REG commands, which monitoring of transceivers causes all the time, and messages about
plugged cables.
"""
_UNKNOWN_NIC_ERROR = NicError(
    "", "The adapter's driver reported an error that is not in this version's table", fatal=False, action="inspect"
)


def nic_error(code: int) -> NicError:
    """Return the row for an error code; a generic row if this version of the agent does not define the code."""
    return NIC_ERRORS.get(code, _UNKNOWN_NIC_ERROR)
