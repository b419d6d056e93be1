"""TABLE: errors of network adapters in the kernel log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple


class NicError(NamedTuple):
    """One row."""

    words: str
    """Regular expression for a part of the line."""
    meaning: str
    fatal: bool
    """True for a failure, False for a warning."""
    action: Literal["none", "reboot", "inspect"]
    """What to do, as verdicts name it."""


NIC_ERRORS: Mapping[int, NicError] = {
    1: NicError(
        r"health compromised|health recovery flow aborted",
        "The adapter's firmware does not answer",
        fatal=True,
        action="reboot",
    ),
    2: NicError(r"wait_func.*\) timeout", "The adapter does not answer a command", fatal=True, action="reboot"),
    3: NicError(r"high temperature", "The adapter or its transceiver is too hot", fatal=True, action="inspect"),
    4: NicError(
        r"insufficient power on the PCIe slot",
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
    "", "The adapter's driver reported an error that this version does not know", fatal=False, action="inspect"
)


def nic_error(code: int) -> NicError:
    """Return the row of an event; None if the event is from another version of the agent and has no row."""
    return NIC_ERRORS.get(code, _UNKNOWN)
