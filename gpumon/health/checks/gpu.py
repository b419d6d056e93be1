"""CHECKS: GPUs that do not answer, each for its own reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpumon.health.check import HOUR, MINUTE, Check, Latch
from gpumon.health.expectation import BASES, Basis, Expectation
from gpumon.health.facts import Facts, GpuCase
from gpumon.health.gpu_faults import FAULTS
from gpumon.health.verdict import NODE, PASSED, Action, Finding, Level, Way, fail, recovered, unknown
from gpumon.model.error_event import FIRMWARE_SILENT
from gpumon.model.snapshot import CONTAINER

_TOLD = frozenset({Basis.ACCEPTED, Basis.CONFIGURED})
"""A person has said how many there should be."""
_OPENING = 2 * MINUTE
"""Without persistence mode each GPU takes up to three seconds to open, one after the other: the last ones wait."""


def _faulted(fault: str, action: Action, level: Level = Level.FAIL) -> Callable[[GpuCase], Finding | None]:
    def judge(gpu: GpuCase) -> Finding | None:
        state = gpu.state
        if state.fault == fault:
            detail = f" {state.detail.rstrip('.')}." if state.detail else ""
            reason = FAULTS[fault].meaning + detail
            return unknown(reason, action) if level is Level.UNKNOWN else fail(reason, action, pci_bus_id=state.bus_id)
        return None if state.fault is not None or state.released else PASSED

    return judge


def stuck(gpu: GpuCase) -> Finding | None:
    """What is stuck in the driver ends with a reboot alone; firmware that is silent is brought back by a reset."""
    finding = _faulted("stuck", Action.REBOOT)(gpu)
    silent = any(event.code in FIRMWARE_SILENT for event in gpu.events("gpu_stuck"))
    return finding._replace(action=Action.RESET) if finding is not None and finding.level and silent else finding


def missing(gpu: GpuCase) -> Finding | None:
    """One that was here. Gone since before the last boot, another boot will not bring it back."""
    state = gpu.state
    if state.fault != "missing":
        return None if state.fault is not None or state.released else PASSED
    board = state.stored
    rebooted = board is not None and board.boot_id != gpu.facts.boot_id
    where = {"pci_bus_id": state.bus_id} if board is None else {"pci_bus_id": board.bus_id, "serial": board.serial}
    evidence: dict[str, Any] = {name: value for name, value in where.items() if value}
    reason = f"{FAULTS['missing'].meaning} It is {state.detail}."
    if _not_given(gpu):
        given = "This container may have been given fewer GPUs than before"
        return unknown(f"{reason} {given}: if that is meant, run `gpumon inventory accept`.", **evidence)
    action = Action.INSPECT if rebooted else Action.REBOOT
    return fail(reason, action, **evidence)


def _not_given(gpu: GpuCase) -> bool:
    """A container that was started again without it has the host's bus before it, and no driver's word on the board.

    While it runs nothing is taken from it; and a number that a person has said is not reached without the board.
    """
    facts, wanted = gpu.facts, gpu.facts.expectation
    if wanted.place != CONTAINER or not gpu.state.restored or gpu.state.bus_id not in (facts.bus or {}):
        return False
    return wanted.basis not in _TOLD or (facts.node.gpus_visible or 0) >= wanted.count


def count(facts: Facts) -> Finding | None:
    """The driver's count against what should be here. GPUs that are missing each have a verdict of their own."""
    wanted, visible = facts.expectation, facts.node.gpus_visible
    if visible is None or any(state.released for state in facts.gpus):
        return None
    lacking = wanted.count - visible - sum(state.fault == "missing" for state in facts.gpus)
    words = f"The driver counts {visible:.0f} GPU{'' if visible == 1 else 's'}"
    if lacking > 0:
        reason = f"{words}; there should be {wanted.count}, {BASES[wanted.basis]}.{_unlisted(wanted)}"
        action = Action.REBOOT if wanted.unlisted else Action.INSPECT
        return fail(reason, action, gpus_visible=visible, gpus_expected=wanted.count)
    if wanted.may is not None and wanted.may > visible:
        more = f"there may be {wanted.may}, {BASES[wanted.may_basis]}"
        given = f"this {wanted.place} may have been given fewer"
        remedy = "Set gpus.expected_count, or run `gpumon inventory accept`"
        return unknown(f"{words}; {more}, but {given}. {remedy}.", gpus_visible=visible)
    return recovered(Way.GONE) if _settled(facts) else PASSED


def _settled(facts: Facts) -> bool:
    """Whether a person has said meanwhile how many there are: what lacked then is expected no more."""
    known, wanted = facts.open.get(("gpu_count_mismatch", NODE)), facts.expectation
    return known is not None and wanted.basis in _TOLD and known.evidence.get("gpus_expected") != wanted.count


def _unlisted(wanted: Expectation) -> str:
    if not wanted.unlisted:
        return ""
    return f" On the PCI bus, and not listed by the driver: {', '.join(wanted.unlisted)}."


def _steps(fault: str) -> str:
    return f"1. {FAULTS[fault].action}\n2. It comes again: run the vendor's diagnostics, replace the board.\n"


CHECKS = (
    Check(
        name="gpu_lost",
        help="The GPU fell off the bus.",
        steps=_steps("lost"),
        gpu=_faulted("lost", Action.REBOOT),
        latch=Latch(),
    ),
    Check(
        name="gpu_missing",
        help="A GPU that was here is gone.",
        steps=_steps("missing"),
        gpu=missing,
        after=MINUTE,  # a driver that is loaded again takes up one GPU after the other
        latch=Latch(quiet=HOUR),
        inhibited_by={"gpu_lost": "same"},
    ),
    Check(
        name="gpu_reset_required",
        help="The GPU does not work until it is reset.",
        steps=_steps("reset_required"),
        gpu=_faulted("reset_required", Action.RESET),
        latch=Latch(quiet=HOUR),
        inhibited_by={"gpu_lost": "same"},
    ),
    Check(
        name="gpu_init_failed",
        help="The driver could not start the GPU.",
        steps=_steps("init_failed"),
        gpu=_faulted("init_failed", Action.RESET),
        latch=Latch(quiet=HOUR),
        inhibited_by={"gpu_lost": "same"},
    ),
    Check(
        name="gpu_stuck",
        help="A driver call on the GPU does not return.",
        steps=_steps("stuck"),
        gpu=stuck,
        after=15.0,
        latch=Latch(quiet=HOUR),
        inhibited_by={"gpu_lost": "same"},
    ),
    Check(
        name="gpu_unreadable",
        help="The GPU cannot be read, and the driver does not say why.",
        steps=_steps("unknown"),
        gpu=_faulted("unknown", Action.RESET),
        after=_OPENING,
        grace=True,  # as of `gpu_driver_down`: without a driver no GPU can be read
        inhibited_by={"gpu_driver_down": "node", "gpu_lost": "same"},
    ),
    Check(
        name="gpu_denied",
        levels=(),
        help="The agent may not open the GPU.",
        steps=_steps("no_permission"),
        gpu=_faulted("no_permission", Action.NONE, Level.UNKNOWN),
    ),
    Check(
        name="gpu_count_mismatch",
        help="There are fewer GPUs than there should be.",
        steps="""\
1. `gpumon inventory` names the GPUs that are here, how many should be, and who says so.
2. `lspci -d 10de:` and `journalctl -k -g NVRM`: is one on the bus that the driver could not start (RmInitAdapter)?
   Drain the node and reboot it.
3. It is not on the bus: drain the node, power-cycle it, then look at seat, riser and power, and at the BMC's list.
4. There are no more, and that is meant: `gpumon inventory accept`, or set `gpus.expected_count`.
""",
        node=count,
        after=MINUTE,
        grace=True,
        inhibited_by={
            "gpu_driver_down": "node",
            "gpu_lost": "any",
            "gpu_init_failed": "any",
            "gpu_stuck": "any",
        },
    ),
)
