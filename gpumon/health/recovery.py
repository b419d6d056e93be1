"""TABLE: what the driver asks for, by NVML's number of the recovery action; Xid 154 says when that changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gpumon.health.verdict import Action
from gpumon.health.xids import NOTHING, REBOOT, RESET, Severity


class Recovery(NamedTuple):
    """One of its wishes."""

    words: str
    """As in: it asks for ..."""
    severity: Severity
    """Of the Xid that says so."""
    next_step: str
    """In the words of the catalogue of Xids."""
    action: Action
    hint: str = ""
    """What more a person should know."""


DRAIN = "stop the jobs that use this GPU's links"
RECOVERY: Mapping[int, Recovery] = {
    0: Recovery("nothing", Severity.INFO, NOTHING, Action.NONE),
    1: Recovery("a reset of the GPU", Severity.CRITICAL, RESET, Action.RESET),
    2: Recovery(
        "a reboot of the node", Severity.CRITICAL, REBOOT, Action.REBOOT, "the operating system may be harmed too"
    ),
    3: Recovery(
        "an end of all peer-to-peer traffic",
        Severity.WARNING,
        DRAIN,
        Action.RESTART,
        "end the applications that use it, and it will say what comes next",
    ),
    4: Recovery("the GPU to be drained, and then reset", Severity.CRITICAL, f"{DRAIN}, then {RESET}", Action.RESET),
    5: Recovery("the IMEX domain to be recovered", Severity.WARNING, "recover the IMEX domain", Action.INSPECT),
    6: Recovery(
        "a reset of the GPU's PCIe bus", Severity.CRITICAL, REBOOT, Action.REBOOT, "nvidia-smi cannot, a reboot does"
    ),
    7: Recovery("a reboot of the node", Severity.CRITICAL, REBOOT, Action.REBOOT),
}


def recovery_of(number: float) -> Recovery:
    """What a newer driver may ask for is for a person."""
    words = f"something that this version does not know (action {number:.0f})"
    unknown = Recovery(words, Severity.WARNING, "do what it says", Action.INSPECT)
    return RECOVERY.get(int(number), unknown)
