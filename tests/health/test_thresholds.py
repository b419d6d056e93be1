"""What thresholds that an operator has switched off leave behind."""

from __future__ import annotations

from dataclasses import replace

from judging import Ward

from gpumon.health.check_row import Check
from gpumon.health.policy import Policy
from gpumon.health.table import CHECKS, LIMITS
from gpumon.health.verdict import NODE, Action, Verdict
from gpumon.model.instant import Instant

_OF_HISTORY = frozenset({"node_repeat_offender"})
"""Latched, and of what was done and not of what is: quiet time ends it, or a person."""


def test_numbers_set_to_null_take_back_what_was_found_by_them() -> None:
    """Disabling any threshold clears its verdicts within half an hour of a restart, before any window of an hour."""
    ward = Ward(policy=Policy(thresholds=dict.fromkeys(LIMITS)))
    found = [_verdict(check, ward) for check in CHECKS if check.limits and check.name not in _OF_HISTORY]
    ward.report = replace(ward.report, health=replace(ward.report.health, open={each.key: each for each in found}))
    ward.restart()
    ward.go_on(1800.0, every=60.0)
    assert {verdict.check for verdict in ward.verdicts.values()} == set()


def _verdict(check: Check, ward: Ward) -> Verdict:
    """As if it had been raised just now, of a device that has such checks."""
    gpu, port = ward.report.gpus[1].uuid, ward.report.ports[0]
    device = gpu if check.gpu else f"{port.device}/{port.port}" if check.port else NODE
    return Verdict(
        check=check.name,
        device=device,
        level=check.levels[0],
        reason="It was so.",
        action=Action.INSPECT,
        raised=Instant(ward.report.boot_id, ward.at, ward.wall),
        last_active=Instant(ward.report.boot_id, ward.at, ward.wall),
    )
