"""Checks of the GPU's memory: ECC, rows and pages that are replaced, and the driver's advice."""

from __future__ import annotations

from typing import Any

import pytest
from changed_report import with_transitions
from each_case import each_case
from judging import Ward

from gpumon.health.evaluation import transition
from gpumon.health.policy import Policy
from gpumon.health.verdict import Action, Clearance, Level, VerdictChange
from gpumon.state import health_section

MINUTES = 60.0

CONDITIONS = [
    # check, readings with it, readings just without, level, action, seconds it has to last
    ("gpu_row_remap_failed", {"row_remap_failed": 1.0}, {"row_remap_failed": 0.0}, Level.FAIL, Action.REPLACE, 0),
    (
        "gpu_ecc_sram_threshold",
        {"ecc_sram_threshold_exceeded": 1.0},
        {"ecc_sram_threshold_exceeded": 0.0},
        Level.FAIL,
        Action.REPLACE,
        0,
    ),
    (
        "gpu_row_remap_many",
        {"rows_remapped_total": {"correctable": 0.0, "uncorrectable": 512.0}},
        {"rows_remapped_total": {"correctable": 900.0, "uncorrectable": 511.0}},
        Level.WARN,
        Action.REPLACE,
        0,
    ),
    (
        "gpu_row_remap_banks",
        {"row_remap_banks": {"max": 2558.0, "none": 2.0}},
        {"row_remap_banks": {"max": 2559.0, "low": 1.0, "none": 0.0}},
        Level.WARN,
        Action.INSPECT,
        0,
    ),
    (
        "gpu_retired_pages",
        {"retired_pages": {"multiple_single_bit": 5.0, "double_bit": 6.0}},
        {"retired_pages": {"multiple_single_bit": 5.0, "double_bit": 5.0}},
        Level.WARN,
        Action.INSPECT,
        0,
    ),
    (
        "gpu_retired_pages",
        {"retired_pages": {"multiple_single_bit": 31.0, "double_bit": 30.0}},
        {"retired_pages": {"multiple_single_bit": 0.0, "double_bit": 0.0}},
        Level.FAIL,
        Action.REPLACE,
        0,
    ),
    ("gpu_row_remap_pending", {"row_remap_pending": 1.0}, {"row_remap_pending": 0.0}, Level.WARN, Action.RESET, 900),
    *(
        (
            "gpu_row_remap_pending",
            {"row_remap_pending": 0.0, "repair_pending": {part: 1.0}},
            {"row_remap_pending": 0.0, "repair_pending": {part: 0.0}},
            Level.WARN,
            Action.RESET,
            900,
        )
        for part in ("channel", "tpc", "bank")
    ),
    (
        "gpu_memory_unrepairable",
        {"memory_unrepairable": 1.0},
        {"memory_unrepairable": 0.0},
        Level.FAIL,
        Action.REPLACE,
        0,
    ),
    (
        "gpu_row_remap_banks",
        {"row_remap_banks": {"none": 0.0}, "bank_groups_without_spares": 1.0},
        {"row_remap_banks": {"none": 0.0}, "bank_groups_without_spares": 0.0},
        Level.WARN,
        Action.INSPECT,
        0,
    ),
    (
        "gpu_page_retirement_pending",
        {"retired_pages_pending": 1.0},
        {"retired_pages_pending": 0.0},
        Level.WARN,
        Action.REBOOT,
        900,
    ),
    ("gpu_recovery_action", {"recovery_action": 1.0}, {"recovery_action": 0.0}, Level.FAIL, Action.RESET, 60),
    ("gpu_recovery_action", {"recovery_action": 2.0}, {"recovery_action": 0.0}, Level.FAIL, Action.REBOOT, 60),
    ("gpu_recovery_action", {"recovery_action": 3.0}, {"recovery_action": 0.0}, Level.FAIL, Action.RESTART, 60),
    ("gpu_recovery_action", {"recovery_action": 4.0}, {"recovery_action": 0.0}, Level.FAIL, Action.RESET, 60),
    ("gpu_recovery_action", {"recovery_action": 7.0}, {"recovery_action": 0.0}, Level.FAIL, Action.REBOOT, 60),
    ("gpu_recovery_action", {"recovery_action": 12.0}, {"recovery_action": 0.0}, Level.FAIL, Action.INSPECT, 60),
]


@each_case(("check", "bad", "good", "level", "action", "lasting"), CONDITIONS)
def test_condition(  # noqa: PLR0917 - a row
    check: str, bad: dict[str, Any], good: dict[str, Any], level: Level, action: Action, lasting: float
) -> None:
    """The verdict is on its GPU alone, stays while it cannot be read, and clears after a healthy minute."""
    ward = Ward(gpus=3)
    ward.gpu(1, **good)
    assert not ward.go_on(lasting + 60, every=15).verdicts
    ward.gpu(1, **bad)
    if lasting:
        assert not ward.go_on(lasting - 15, every=15).verdicts
    verdict = ward.go_on(30).verdict(check, 1)
    assert verdict is not None
    assert (verdict.level, verdict.action) == (level, action)
    assert len(ward.verdicts) == 1

    ward.gpu(1, **dict.fromkeys(bad))
    ward.fault(1, "unknown")
    assert ward.go_on(90).level(check, 1) is level
    ward.fault(1, None)
    ward.gpu(1, **good)
    assert not ward.go_on(120).verdict(check, 1)


@pytest.mark.parametrize(
    ("name", "readings", "check"),
    [
        ("rows_remapped", {"rows_remapped_total": {"uncorrectable": 600.0}}, "gpu_row_remap_many"),
        ("max_retired_pages", {"retired_pages": {"double_bit": 20.0}}, "gpu_retired_pages"),
        ("max_retired_pages_critical", {"retired_pages": {"double_bit": 62.0}}, "gpu_retired_pages"),
    ],
)
def test_a_limit_can_be_set(name: str, readings: dict[str, Any], check: str) -> None:
    """A configured limit replaces the default; null disables the check."""
    shipped, other, off = (
        Ward(gpus=1, policy=Policy(thresholds=thresholds)) for thresholds in ({}, {name: 1000.0}, {name: None})
    )
    for ward in (shipped, other, off):
        ward.gpu(0, **readings)
        ward.go_on()
    assert shipped.level(check) > other.level(check) == off.level(check)


# Uncorrectable errors


def test_uncorrectable_errors_stay_until_the_reset() -> None:
    """The verdict names the location; a reset clears it, though the total does not fall; new errors raise another."""
    ward = Ward(gpus=2)
    ward.go_on(60)
    ward.ecc(1, uncorrected_dram=2)
    verdict = ward.go_on(15).verdict("gpu_ecc_uncorrectable", 1)
    assert verdict is not None
    assert (verdict.level, verdict.action) == (Level.FAIL, Action.RESET)
    assert verdict.reason.startswith("The GPU had 2 uncorrectable errors in its memory (DRAM):")
    assert ward.go_on(3 * 3600, every=60).level("gpu_ecc_uncorrectable", 1) is Level.FAIL
    ward.reset(1)
    assert ward.go_on(30).verdicts
    assert not ward.go_on(60).verdicts
    assert ward.transitions[-1].cleared_by is Clearance.RESET
    assert not ward.go_on(3600, every=60).verdicts

    ward.ecc(1, uncorrected_sram=1)
    again = ward.go_on(15).verdict("gpu_ecc_uncorrectable", 1)
    assert again is not None
    assert again.action is Action.REBOOT
    assert "1 uncorrectable error in its caches and registers (SRAM)" in again.reason


def test_a_reset_right_after_the_error_is_detected() -> None:
    ward = Ward(gpus=1)
    ward.go_on(60)
    ward.ecc(0, uncorrected_dram=1)
    assert ward.go_on(30).verdicts
    ward.reset(0)
    assert not ward.go_on(90).verdicts


def test_cleared_counters_prove_no_reset() -> None:
    """After `nvidia-smi -p 0` the energy counter continues: no reset. A later reset clears the verdict."""
    ward = Ward(gpus=1)
    ward.go_on(60)
    ward.ecc(0, uncorrected_dram=2)
    ward.go_on(30)
    ward.gpu(0, state={"ecc_volatile": dict.fromkeys(ward.report.gpus[0].ecc_volatile or {}, 0.0)})
    assert ward.go_on(3600, every=60).level("gpu_ecc_uncorrectable") is Level.FAIL
    ward.reset(0)
    assert not ward.go_on(90).verdicts


def test_errors_survive_a_restart_of_the_agent() -> None:
    ward = Ward(gpus=2)
    ward.go_on(60)
    ward.ecc(0, uncorrected_dram=1)
    ward.ecc(1, uncorrected_dram=1)
    ward.go_on(30)
    cleared = ward.verdict("gpu_ecc_uncorrectable", 1)
    assert cleared is not None
    known = health_section.facts(ward.report, ward.moment, ward.terms)
    ended = transition(cleared, VerdictChange.CLEARED, known, Clearance.OPERATOR)
    ward.report = with_transitions(ward.report, (ended,))
    ward.restart()
    ward.go_on(600, every=15)
    assert ward.level("gpu_ecc_uncorrectable", 0) is Level.FAIL
    assert ward.verdict("gpu_ecc_uncorrectable", 1) is None


def test_a_reset_while_the_agent_was_stopped_clears_it() -> None:
    ward = Ward(gpus=1)
    ward.go_on(60)
    ward.ecc(0, uncorrected_dram=1)
    ward.go_on(30)
    ward.reset(0)
    ward.restart()
    assert ward.go_on(200).verdicts
    assert not ward.go_on(60).verdicts
    assert ward.transitions[-1].cleared_by is Clearance.RESET


def test_errors_from_before_the_start_are_a_warning() -> None:
    """Errors that the driver counted before the agent started ask for a reset, which clears the warning."""
    ward = Ward(gpus=1)
    ward.ecc(0, uncorrected_dram=3)
    verdict = ward.go_on().verdict("gpu_ecc_uncorrectable")
    assert verdict is not None
    assert (verdict.level, verdict.action) == (Level.WARN, Action.RESET)
    assert "before the agent started" in verdict.reason
    ward.ecc(0, uncorrected_dram=1)
    assert ward.go_on(30).level("gpu_ecc_uncorrectable") is Level.FAIL
    ward.reset(0)
    assert not ward.go_on(90).verdicts


def test_a_healthy_period_after_a_reboot_clears_it() -> None:
    ward = Ward(gpus=1)
    ward.go_on(60)
    ward.ecc(0, uncorrected_dram=1)
    ward.go_on(30)
    ward.reboot()
    ward.reset(0)
    ward.restart()
    assert ward.go_on(600, every=10).verdicts
    assert not ward.go_on(300, every=10).verdicts
    assert ward.transitions[-1].cleared_by is Clearance.REBOOT


def test_uncorrectable_errors_that_cannot_be_read_change_nothing() -> None:
    """With MIG the driver does not report the counters."""
    ward = Ward(gpus=1)
    ward.gpu(0, state={"ecc_volatile": None}, ecc_errors_total=None)
    assert not ward.go_on(600, every=15).verdicts


@pytest.mark.parametrize("cleared_by", [Clearance.RESET, Clearance.REBOOT])
def test_a_reset_clears_uncorrectable_errors_with_mig(cleared_by: Clearance) -> None:
    """With MIG the counters stay unreadable, but the reset itself is detected and clears the verdict."""
    ward = Ward(gpus=1).go_on(60)
    ward.ecc(0, uncorrected_dram=1)
    ward.go_on(30)
    unread: dict[str, Any] = {"mig_mode": 1.0, "ecc_errors_total": None}
    ward.gpu(0, state={"ecc_volatile": None}, **unread)
    assert ward.go_on(3600, every=60).level("gpu_ecc_uncorrectable") is Level.FAIL
    if cleared_by is Clearance.RESET:
        ward.reset(0)
    else:
        ward.reboot()
    ward.gpu(0, state={"ecc_volatile": None}, **unread)
    assert not ward.go_on(900, every=10).verdicts
    assert ward.transitions[-1].cleared_by is cleared_by


# Corrected errors


def test_corrected_errors_at_a_normal_rate_give_no_verdict() -> None:
    """A hundred a second for an hour give no verdict, nor does the total that AzureNHC accepts."""
    ward = Ward(gpus=1)
    ward.ecc(0, corrected_sram=10_000, corrected_dram=19_000_000)
    for _ in range(720):
        ward.ecc(0, corrected_dram=500)
        assert not ward.go_on().verdicts


def test_a_storm_of_corrected_errors() -> None:
    """More than a hundred a second for five minutes are a warning that clears when they stop."""
    ward = Ward(gpus=2)
    ward.go_on(60)
    for _ in range(58):
        ward.ecc(1, corrected_dram=600)
        assert not ward.go_on().verdicts
    for _ in range(16):
        ward.ecc(1, corrected_dram=600)
        ward.go_on()
    verdict = ward.verdict("gpu_ecc_corrected_storm", 1)
    assert verdict is not None
    assert (verdict.level, verdict.action) == (Level.FAIL, Action.RESET)
    assert verdict.reason.startswith("ECC corrects 120 errors a second")
    assert not ward.go_on(180).verdicts


@pytest.mark.parametrize(
    ("few", "many"),
    [
        ({"corrected_sram": 10_000}, {"corrected_sram": 10_001}),
        ({"corrected_dram": 20_000_000}, {"corrected_dram": 20_000_001}),
    ],
)
def test_many_corrected_errors(few: dict[str, float], many: dict[str, float]) -> None:
    """The warning comes after a quarter of an hour and clears with the reset."""
    ward = Ward(gpus=2)
    ward.ecc(0, **few)
    ward.ecc(1, **many)
    assert not ward.go_on(14 * MINUTES).verdicts
    verdict = ward.go_on(2 * MINUTES).verdict("gpu_ecc_corrected_high", 1)
    assert verdict is not None
    assert (verdict.level, verdict.action) == (Level.WARN, Action.RESET)
    assert len(ward.verdicts) == 1
    ward.reset(1)
    assert not ward.go_on(90).verdicts
