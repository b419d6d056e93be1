"""TABLE: errors of network adapters in the kernel log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple


class NicError(NamedTuple):
    """One row."""

    message: str
    """Regular expression for the whole message, after the place in the driver that it names."""
    meaning: str
    fatal: bool
    """True for a failure, False for a warning."""
    action: Literal["none", "reboot", "inspect"]
    """What to do, as verdicts name it."""


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
    3: NicError(
        r"High temperature on sensors? with bit set[\w ,.]{0,80}"
        r"|Port module event(?:\[error\])?: module \d+, [\w /]+, High Temperature",
        "The adapter or its transceiver is too hot",
        fatal=True,
        action="inspect",
    ),
    4: NicError(
        r"Detected insufficient power on the PCIe slot(?: \(\d+W\))?\.?",
        "The slot gives the adapter too little power",
        fatal=False,
        action="none",
    ),
}
"""Rows by a code of gpumon's own, because adapters have no codes. Power messages also appear at each boot of healthy
cards.

Excluded: failed ACCESS_REG commands, which monitoring of transceivers causes all the time, and plugged cables.
"""
_UNKNOWN = NicError(
    "", "The adapter's driver reported an error that is not in this version's table", fatal=False, action="inspect"
)


def nic_error(code: int) -> NicError:
    """Return the row of an event; None if the event is from another version of the agent and has no row."""
    return NIC_ERRORS.get(code, _UNKNOWN)
