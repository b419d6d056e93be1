"""From findings to verdicts."""

from __future__ import annotations

import logging
from dataclasses import replace

from judging import LOOK, Ward

from gpumon.health.check_row import Check
from gpumon.health.device_case import GpuCase
from gpumon.health.evaluation import evaluate
from gpumon.health.policy import Policy
from gpumon.health.table import BY_NAME, CHECKS, LIMITS
from gpumon.health.verdict import NODE, Action, Clearance, Finding, Level, Verdict, fail
from gpumon.model.instant import Instant
from gpumon.state import health_section
from gpumon.state.sections import changes


def test_every_check_row_is_complete() -> None:
    """Each check has a unique name, applies to one kind of device, and is inhibited only by earlier rows."""
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names) == len(BY_NAME)
    limits = {limit for check in CHECKS for limit in check.limits}
    assert len(limits) == len(LIMITS)
    for place, check in enumerate(CHECKS):
        assert sum(judge is not None for judge in (check.gpu, check.port, check.node)) == 1, check.name
        assert set(check.inhibited_by) <= set(names[:place]), check.name
        assert check.help.endswith("."), check.name
        assert check.steps.startswith("1. "), check.name
        assert "gpumon status" not in check.steps, f"{check.name}: `gpumon status` prints them itself"


def test_a_healthy_node_has_no_verdict() -> None:
    assert not Ward().go_on(3600.0, every=30.0).verdicts


def test_a_finding_must_last() -> None:
    ward = Ward()
    ward.link(3, 4, up=0.0)
    assert not ward.go_on(60).verdicts
    verdict = ward.go_on(90).verdict("nvlink_down", 3)
    assert verdict is not None
    assert verdict.reason == "NVLink 4 of 18 is down."


def test_a_latched_verdict_remains_until_the_gpu_is_reset() -> None:
    """A latched verdict clears a minute after the reset, and the next one asks for more than a reset."""
    ward = Ward()
    ward.event(2, 95)
    assert ward.go_on().level("gpu_xid_critical", 2) is Level.FAIL
    assert ward.go_on(7 * 86400.0, every=3600.0).level("gpu_xid_critical", 2) is Level.FAIL
    ward.reset(2)
    assert ward.go_on(30).verdict("gpu_xid_critical", 2)
    assert not ward.go_on(60).verdicts
    assert ward.transitions[-1].cleared_by is Clearance.RESET
    ward.event(2, 95)
    verdict = ward.go_on().verdict("gpu_xid_critical", 2)
    assert verdict is not None
    assert verdict.action is Action.REBOOT


def test_a_gpu_that_cannot_be_read_keeps_its_verdict() -> None:
    """An unreadable GPU keeps its verdict, because unknown is not healthy."""
    ward = Ward()
    ward.gpu(1, row_remap_failed=1.0)
    assert ward.go_on().level("gpu_row_remap_failed", 1) is Level.FAIL
    ward.fault(1, "stuck")
    ward.gpu(1, row_remap_failed=None)
    assert ward.go_on(3600.0, every=30.0).level("gpu_row_remap_failed", 1) is Level.FAIL


def test_a_lost_gpu_inhibits_link_verdicts_of_its_peers() -> None:
    ward = Ward(gpus=2)
    peers = ward.report.gpus[0].peers
    for index in (0, 1):
        other = ward.report.gpus[1 - index].bus_id
        named = {link: type(peer)(peer_type="gpu", peer=other) for link, peer in peers.items()}
        ward.gpu(index, state={"peers": named})
    ward.fault(0, "lost")
    ward.link(1, 4, up=0.0)
    ward.go_on(180)
    assert [each.check for each in ward.report.health.primary] == ["gpu_lost"]
    assert ward.active_checks() == ["gpu_lost", "nvlink_down"]


def test_a_check_that_raises_does_not_stop_other_checks() -> None:
    """Other checks and devices are evaluated, open verdicts remain, a notice is shown, and one line is logged."""
    ward = Ward(gpus=3)
    ward.event(2, 95)
    ward.gpu(0, temperature_celsius=1.0)

    def hot(gpu: GpuCase) -> Finding:
        return fail(f"{100 / (gpu.now.temperature_celsius or 0):.0f}", Action.INSPECT)

    row = Check(name="hot", help="Hot.", steps="1. Cool it.\n", gpu=hot)
    before = evaluate_with(ward, row)
    assert before == []
    ward.gpu(0, temperature_celsius=0.0)
    assert evaluate_with(ward, row) == [
        (logging.ERROR, "a check raised an exception, its verdicts stay: report this bug")
    ]
    assert evaluate_with(ward, row) == []
    assert [ward.level("hot", index) for index in range(3)] == [Level.FAIL] * 3
    assert ward.level("gpu_xid_critical", 2) is Level.FAIL
    verdict = ward.verdict("gpumon_check_failing")
    assert verdict is not None
    assert verdict.level is Level.WARN
    assert verdict.reason.startswith("The check hot of GPU 0 fails: ZeroDivisionError: ")
    assert "(test_evaluation.py:" in verdict.reason
    ward.gpu(0, temperature_celsius=50.0)
    assert evaluate_with(ward, row) == [(logging.INFO, "the check works again")]
    for _ in range(15):
        evaluate_with(ward, row)
    assert ward.verdict("gpumon_check_failing") is None


def evaluate_with(ward: Ward, row: Check) -> list[tuple[int, str]]:
    """Evaluate once with this check first and return the logged lines about checks."""
    ward.at += LOOK
    before = ward.report
    health = evaluate(before.health, health_section.facts(before, ward.moment, ward.terms), (row, *CHECKS))
    ward.report = replace(before, health=health)
    lines = [(change.level, change.message) for change in changes(before, ward.report) if "check" in change.message]
    ward.rule(health.due)
    return lines


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
