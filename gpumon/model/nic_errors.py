"""Table of the errors that drivers of network adapters write to the kernel log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple


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
_UNKNOWN = NicError(
    "", "The adapter's driver reported an error that is not in this version's table", fatal=False, action="inspect"
)


def nic_error(code: int) -> NicError:
    """Return the row for an error code; a generic row if this version of the agent does not define the code."""
    return NIC_ERRORS.get(code, _UNKNOWN)
