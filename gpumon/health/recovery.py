"""RECOVERY: the recovery actions that the driver can request, by NVML's number. Xid 154 reports a new request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gpumon.health.verdict import Action
from gpumon.health.xids import NOTHING, REBOOT, RESET, Severity


class Recovery(NamedTuple):
    """One recovery action that the driver requests, and what an operator does about it."""

    words: str
    """Completes "The driver requests ..."."""
    severity: Severity
    """Severity of an Xid 154 that reports this action."""
    next_step: str
    """What an operator does, in the words of the Xid table."""
    action: Action
    hint: str = ""
    """Additional information for the operator."""


DRAIN = "stop the jobs that use this GPU's links"
RECOVERY: Mapping[int, Recovery] = {
    0: Recovery("nothing", Severity.INFO, NOTHING, Action.NONE),
    1: Recovery("a reset of the GPU", Severity.CRITICAL, RESET, Action.RESET),
    2: Recovery(
        "a reboot of the node", Severity.CRITICAL, REBOOT, Action.REBOOT, "the operating system may be affected too"
    ),
    3: Recovery(
        "the end of all peer-to-peer traffic",
        Severity.WARNING,
        DRAIN,
        Action.RESTART,
        "end the applications that use it; the driver then reports the next step",
    ),
    4: Recovery("draining and then resetting the GPU", Severity.CRITICAL, f"{DRAIN}, then reset it", Action.RESET),
    5: Recovery("recovery of the IMEX domain", Severity.WARNING, "recover the IMEX domain", Action.INSPECT),
    6: Recovery(
        "a reset of the GPU's PCIe bus",
        Severity.CRITICAL,
        REBOOT,
        Action.REBOOT,
        "nvidia-smi cannot reset the bus, a reboot does",
    ),
    7: Recovery("a reboot of the node", Severity.CRITICAL, REBOOT, Action.REBOOT),
}


def recovery_of(number: float) -> Recovery:
    """Return the recovery action with this NVML number.

    A newer driver may return a number that is not in the table. Then the verdict action is INSPECT.
    """
    words = f"an action that is not in the table of this version (action {number:.0f})"
    unknown = Recovery(words, Severity.WARNING, "perform the action that it names", Action.INSPECT)
    return RECOVERY.get(int(number), unknown)
