"""RECOVERY: the recovery actions that the driver can request, by NVML's number. Xid 154 reports a new request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gpumon.health.verdict import Action, Finding, fail, warn
from gpumon.health.xids import NOTHING, REBOOT, RESET, Severity


class Recovery(NamedTuple):
    """One recovery action that the driver requests, and what an operator does about it."""

    words: str
    """Completes "The driver requests ..."."""
    severity: Severity
    """CRITICAL: the GPU fails while the action is requested. WARNING: it warns."""
    next_step: str
    """What an operator does, in the words of the Xid table."""
    action: Action
    hint: str = ""
    """Additional information for the operator."""
    of_node: bool = False
    """Whether the driver requests the action on all GPUs of the node, though no GPU is at fault. Then one check of the
    node reports it, and an Xid 154 that reports it is information.
    """


DRAIN = "stop the jobs that use this GPU's links"
RECOVERY: Mapping[int, Recovery] = {
    0: Recovery("nothing", Severity.INFO, NOTHING, Action.NONE),
    1: Recovery("a reset of the GPU", Severity.CRITICAL, RESET, Action.RESET),
    2: Recovery(
        "a reboot of the node", Severity.CRITICAL, REBOOT, Action.REBOOT, "the operating system may be affected too"
    ),
    3: Recovery(
        "the end of all peer-to-peer traffic",
        Severity.CRITICAL,
        DRAIN,
        Action.RESTART,
        "end the applications that use it; the driver then reports the next step",
    ),
    4: Recovery("draining and then resetting the GPU", Severity.CRITICAL, f"{DRAIN}, then reset it", Action.RESET),
    5: Recovery(
        "recovery of the IMEX domain",
        Severity.WARNING,
        "restart nvidia-imex and end the jobs that use the IMEX domain",
        Action.RESTART,
        "restart nvidia-imex and end the jobs that use the domain",
        of_node=True,
    ),
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
    unknown = Recovery(words, Severity.CRITICAL, "perform the action that it names", Action.INSPECT)
    return RECOVERY.get(int(number), unknown)


def request_finding(number: float) -> Finding:
    """Return the finding for a GPU, or a node, on which the driver requests this recovery action."""
    request = recovery_of(number)
    hint = f": {request.hint}" if request.hint else ""
    grade = fail if request.severity is Severity.CRITICAL else warn
    return grade(f"The driver asks for {request.words}{hint}.", request.action, recovery_action=number)
