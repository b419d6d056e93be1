"""What ends a verdict: a reset, a reboot that proves health, quiet time; and what was done about one that ended. Pure.

All of it is counted on clocks that nobody sets. Time in which nobody looked is no quiet time.
"""

from __future__ import annotations

from gpumon.health.check import Latch
from gpumon.health.facts import Facts
from gpumon.health.terms import Way
from gpumon.health.verdict import Verdict
from gpumon.model.gpu_state import GpuState

PROOF_AFTER_RESET = 60.0
PROOF_AFTER_REBOOT = 600.0
"""Seconds for which a device has to be well before it is believed."""
SETTLING = 300.0
"""Seconds after a repair in which what was wrong may still be seen: links train, services start."""


def way(verdict: Verdict, latch: Latch, facts: Facts) -> Way | None:
    """How a latched verdict ended that is not so now; None while it lasts."""
    repair = _repair(verdict, facts, settling=0.0) if latch.repair else None
    if repair is not None and is_watched(verdict.device, facts) and _has_proved(repair, verdict, facts):
        return repair
    if latch.quiet is not None and verdict.well >= latch.quiet:
        return Way.QUIET
    return None


def repaired(verdict: Verdict, facts: Facts) -> bool:
    """Whether its GPU was reset, or the node rebooted, since it was last so."""
    return _repair(verdict, facts, settling=0.0) is not None


def found_well(verdict: Verdict, facts: Facts) -> Way:
    """How one ended that is not latched: what was done just before it ended has helped."""
    return _repair(verdict, facts, settling=SETTLING) or Way.WELL


def in_vain(verdict: Verdict, facts: Facts) -> Way | None:
    """What was tried since it was raised, and it is so all the same."""
    if verdict.since_boot != facts.boot_id:
        return Way.REBOOT if facts.uptime >= PROOF_AFTER_REBOOT else None
    begun = reset_at(verdict, facts)
    tried = begun is not None and verdict.since_at < begun <= facts.now.at - SETTLING
    return Way.RESET if tried else None


def reset_at(verdict: Verdict, facts: Facts) -> float | None:
    """When the GPU's counters were seen to begin anew in this boot, by this life of the agent or an earlier one."""
    state = _state(verdict.device, facts)
    known = verdict.reset_at if verdict.boot_id == facts.boot_id else None
    return known if state is None or state.reset_at is None else max(state.reset_at, known or 0.0)


def _repair(verdict: Verdict, facts: Facts, settling: float) -> Way | None:
    """What was done since it was last so, or up to so many seconds before that."""
    here = verdict.boot_id == facts.boot_id
    if not here or (verdict.since_boot != facts.boot_id and verdict.seen_at < settling):
        return Way.REBOOT
    begun = reset_at(verdict, facts)
    if begun is None:
        return None
    raised_at = verdict.since_at if verdict.since_boot == facts.boot_id else 0.0
    return Way.RESET if begun > verdict.seen_at - settling and begun >= raised_at else None


def _has_proved(repair: Way, verdict: Verdict, facts: Facts) -> bool:
    if repair is Way.REBOOT:
        return min(facts.uptime, facts.now.uptime, verdict.well) >= PROOF_AFTER_REBOOT
    begun = reset_at(verdict, facts) or 0.0
    return min(facts.now.at - begun, verdict.well) >= PROOF_AFTER_RESET


def is_watched(device: str, facts: Facts) -> bool:
    """Whether somebody looks at it now. Of what is no GPU, the check itself has said so."""
    state = _state(device, facts)
    return state is None or (state.fault is None and not state.released)


def _state(device: str, facts: Facts) -> GpuState | None:
    return next((state for state in facts.gpus if state.uuid == device), None)
