"""Decides what clears a verdict: a GPU reset or a reboot, followed by a healthy period, or a quiet period. Pure.

All periods are measured on clocks that cannot be set. Time in which the device was not read does not count.
"""

from __future__ import annotations

from gpumon.health.check_row import Latch
from gpumon.health.facts import Facts
from gpumon.health.verdict import Clearance, Verdict
from gpumon.model.gpu_state import GpuState

PROOF_AFTER_RESET = 60.0
PROOF_AFTER_REBOOT = 600.0
"""Seconds for which the check must pass after a reset, or a reboot, that counts as a successful repair."""
SETTLING = 300.0
"""Seconds after a repair in which the fault may still be active, because links train and services start."""


def latched_clearance(verdict: Verdict, latch: Latch, facts: Facts) -> Clearance | None:
    """Return what clears this latched verdict, which must not be active; None if the verdict stays open."""
    repair, now = _repair(verdict, facts, settling=0.0) if latch.repair else None, facts.now
    if repair is Clearance.REBOOT:
        is_proved = min(now.at, now.uptime, verdict.ok_seconds) >= PROOF_AFTER_REBOOT
    else:
        since_reset = now.at - (last_reset_at(verdict, facts) or 0.0)
        is_proved = min(since_reset, verdict.ok_seconds) >= PROOF_AFTER_RESET
    if repair is not None and is_observed(verdict.device, facts) and is_proved:
        return repair
    if latch.quiet is not None and verdict.ok_seconds >= latch.quiet:
        return Clearance.QUIET
    return None


def is_repaired(verdict: Verdict, facts: Facts) -> bool:
    """Return whether the GPU was reset, or the node rebooted, since the fault was last active."""
    return _repair(verdict, facts, settling=0.0) is not None


def recovery_clearance(verdict: Verdict, facts: Facts) -> Clearance:
    """Return what ended a fault that is not latched: a repair up to SETTLING seconds before its end, else RECOVERED."""
    return _repair(verdict, facts, settling=SETTLING) or Clearance.RECOVERED


def ineffective_repair(verdict: Verdict, facts: Facts) -> Clearance | None:
    """Return the repair (REBOOT or RESET) after which this verdict is still active; None if there is none.

    `verdict` must be active. A repair from before it was raised does not count, nor does a reboot in its first
    PROOF_AFTER_REBOOT seconds or a reset in its first SETTLING seconds.
    """
    if verdict.raised.boot_id != facts.boot_id:
        return Clearance.REBOOT if facts.now.at >= PROOF_AFTER_REBOOT else None
    reset_at = last_reset_at(verdict, facts)
    tried = reset_at is not None and verdict.raised.at < reset_at <= facts.now.at - SETTLING
    return Clearance.RESET if tried else None


def last_reset_at(verdict: Verdict, facts: Facts) -> float | None:
    """Return the boot clock time of the last reset of the GPU in this boot, which an earlier run may have detected."""
    state = _gpu_state(verdict.device, facts)
    before = verdict.reset_at if verdict.last_active.boot_id == facts.boot_id else None
    return before if state is None or state.reset_at is None else max(state.reset_at, before or 0.0)


def _repair(verdict: Verdict, facts: Facts, settling: float) -> Clearance | None:
    """Return the repair, after the verdict was raised, since `settling` seconds before its fault was last active."""
    last, raised = verdict.last_active, verdict.raised
    if last.boot_id != facts.boot_id or (raised.boot_id != facts.boot_id and last.at < settling):
        return Clearance.REBOOT
    reset_at = last_reset_at(verdict, facts)
    if reset_at is None:
        return None
    is_later = reset_at > last.at - settling and reset_at >= raised.at_or_boot(facts.boot_id)
    return Clearance.RESET if is_later else None


def is_observed(device: str, facts: Facts) -> bool:
    """Return whether the device can be read now. The checks of a port or the node return None if it cannot be read."""
    state = _gpu_state(device, facts)
    return state is None or (state.fault is None and not state.released)


def _gpu_state(device: str, facts: Facts) -> GpuState | None:
    return next((state for state in facts.gpus if state.uuid == device), None)
