"""What a scenario does to a GPU's memory is found by the check it is meant for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from changed_report import changed
from judging import Ward

from gpumon.health.verdict import Action, Level
from scripts.simulated_reports import report_of

SCENARIOS: Mapping[tuple[str, str], tuple[Level, Action, str]] = {
    ("gpu_ecc_uncorrectable", "h100x8"): (Level.WARN, Action.RESET, "ecc: {uncorrected_dram: 2}"),
    ("gpu_ecc_uncorrectable", "t4x1"): (Level.WARN, Action.RESET, "ecc: {uncorrected_sram: 1}"),
    ("gpu_ecc_sram_threshold", "b200x8"): (Level.FAIL, Action.REPLACE, "ecc: {threshold_exceeded: 1}"),
    ("gpu_ecc_corrected_high", "a100x8"): (Level.WARN, Action.RESET, "ecc: {corrected_sram: 10001}"),
    ("gpu_row_remap_failed", "gb200x4"): (Level.FAIL, Action.REPLACE, "remap: {failed: 1}"),
    ("gpu_row_remap_many", "h200x8"): (Level.WARN, Action.REPLACE, "remap: {uncorrectable: 512}"),
    ("gpu_row_remap_banks", "h100x8"): (Level.WARN, Action.INSPECT, "remap: {banks_none: 1}"),
    ("gpu_row_remap_pending", "gb200x4"): (Level.WARN, Action.RESET, "repair: {channel: 1}"),
    ("gpu_row_remap_pending", "l40sx4"): (Level.WARN, Action.RESET, "repair: {tpc: 1}"),
    ("gpu_memory_unrepairable", "gb200x4"): (Level.FAIL, Action.REPLACE, "repair: {impossible: 1}"),
    ("gpu_row_remap_pending", "h100x8"): (Level.WARN, Action.RESET, "remap: {pending: 1, uncorrectable: 1}"),
    ("gpu_retired_pages", "t4x1"): (Level.FAIL, Action.REPLACE, "set: {retired_uncorrected: 61}"),
    ("gpu_page_retirement_pending", "t4x1"): (Level.WARN, Action.REBOOT, "set: {retired_pending: 1}"),
    ("gpu_recovery_action", "h100x8"): (Level.FAIL, Action.REBOOT, "set: {recovery_action: 2}"),
}


@pytest.mark.parametrize(("check", "profile"), SCENARIOS)
def test_what_is_injected_is_found(check: str, profile: str, tmp_path: Path) -> None:
    """On the GPU it was done to, as the one primary verdict, through the driver's calls."""
    level, action, text = SCENARIOS[check, profile]
    index = 0 if profile == "t4x1" else 3
    scenario = tmp_path / "scenario.yml"
    scenario.write_text(f"idle: true\ngpus: {{{index}: {{{text}}}}}\n")
    report = report_of(profile, scenario)
    ward = Ward()
    ward.report = changed(ward.report, gpus=report.gpus, ports=(), node=report.node)
    ward.go_on(16 * 60, every=30)
    found = [(each.check, each.level, each.action, each.device) for each in ward.report.health.primary]
    assert found == [(check, level, action, report.gpus[index].uuid)]


@pytest.mark.parametrize(
    ("driver", "expected"),
    [
        ("575.57.08", (None, None, None)),
        ("580.105.08", ({"channel": 0.0, "tpc": 0.0}, None, None)),
        ("595.80", ({"channel": 0.0, "tpc": 0.0}, 0.0, None)),
        ("615.10", ({"channel": 0.0, "tpc": 0.0, "bank": 1.0}, 0.0, 2.0)),
    ],
)
def test_repairs_are_read_from_the_drivers_that_report_them(driver: str, expected: object, tmp_path: Path) -> None:
    """An older driver has neither the functions nor the fields: nothing is reported."""
    scenario = tmp_path / "scenario.yml"
    scenario.write_text(f'driver_version: "{driver}"\ngpus: {{1: {{repair: {{bank: 1, banks_spent: 2}}}}}}\n')
    report = report_of("b200x8", scenario)
    gpu = report.gpus[1].gpu
    assert (gpu.repair_pending, gpu.memory_unrepairable, gpu.bank_groups_without_spares) == expected
