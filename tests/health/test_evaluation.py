"""Evaluation of the checks, also on simulated nodes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from changed_report import changed
from judging import LOOK, Ward

from gpumon.health.check_row import HOUR, Check
from gpumon.health.evaluation import evaluate
from gpumon.health.facts import GpuCase
from gpumon.health.policy import Policy
from gpumon.health.table import BY_NAME, CHECKS, LIMITS
from gpumon.health.verdict import NODE, Action, Finding, Level, Verdict, fail
from gpumon.model.allocation import Allocation, Owner
from gpumon.model.instant import Instant
from gpumon.probe.core.probes import PROBES
from gpumon.probe.core.state import ProbeState
from gpumon.state import health_section
from gpumon.state.allocations import JobState
from gpumon.state.sections import changes
from scripts.simulated_reports import report_of


def test_every_check_row_is_complete() -> None:
    """Each check has a unique name, applies to one kind of device, and is inhibited only by earlier rows."""
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names) == len(BY_NAME)
    limits = {limit for check in CHECKS for limit in check.limits}
    assert len(limits) == len(LIMITS)
    for place, check in enumerate(CHECKS):
        assert sum(judge is not None for judge in (check.gpu, check.port, check.job, check.node)) == 1, check.name
        assert set(check.inhibited_by) <= set(names[:place]), check.name
        assert check.help.endswith("."), check.name
        assert check.steps.startswith("1. "), check.name
        assert "gpumon status" not in check.steps, f"{check.name}: `gpumon status` prints them itself"


def test_a_finding_must_last() -> None:
    ward = Ward()
    ward.link(3, 4, up=0.0)
    assert not ward.go_on(60).verdicts
    verdict = ward.go_on(90).verdict("nvlink_down", 3)
    assert verdict is not None
    assert verdict.reason == "NVLink 4 of 18 is down."


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


def test_a_verdict_keeps_the_owners_of_its_gpu() -> None:
    """Those at the time when it was raised, after they have left too; who comes later is not named."""
    ward = Ward()
    began = Instant("boot", 0.0, ward.wall - 60.0)
    held, later = (
        Allocation(
            uuid=ward.report.gpus[2].uuid,
            source="mapping",
            owner=Owner(slurm_job_id=job),
            began=began,
            last_wall=ward.wall + HOUR,
        )
        for job in ("4711", "4712")
    )
    ward.report = changed(ward.report, jobs=JobState(allocations=(held,), names=frozenset({"slurm_job_id"})))
    ward.event(2, 95)
    ward.go_on(10)
    ward.report = changed(ward.report, jobs=JobState(allocations=(later,)))
    verdict = ward.go_on(60).verdict("gpu_xid_critical", 2)
    assert verdict is not None
    assert verdict.with_holders("Broken.") == "Broken. The GPU was held by slurm/4711."


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
    ward.terms = replace(ward.terms, probe_intervals=dict.fromkeys(PROBES, 6 * HOUR))
    found = [_verdict(check, ward) for check in CHECKS if check.limits and check.name not in _OF_HISTORY]
    ward.report = replace(ward.report, health=replace(ward.report.health, open={each.key: each for each in found}))
    ward.report = replace(ward.report, jobs=replace(ward.report.jobs, known={"GPU": True}))
    ward.restart()
    ward.go_on(1800.0, every=60.0)
    assert {verdict.check for verdict in ward.verdicts.values()} == set()


def _verdict(check: Check, ward: Ward) -> Verdict:
    """As if it had been raised just now, of a device that has such checks."""
    gpu, port = ward.report.gpus[1].uuid, ward.report.ports[0]
    devices = {"gpu": gpu, "port": f"{port.device}/{port.port}", "job": "job/slurm/1", "node": NODE}
    return Verdict(
        check=check.name,
        device=devices[check.kind],
        level=check.levels[0],
        reason="It was so.",
        action=Action.INSPECT,
        raised=Instant(ward.report.boot_id, ward.at, ward.wall),
        last_active=Instant(ward.report.boot_id, ward.at, ward.wall),
    )


WORK = "jobs: [{load: 0.9}]\n"
IDLE = "idle: true\n"
LIGHT = 'jobs: [{load: 0.1}]\ngpus: {"*": {set: {utilization: 100, memory_utilization: 20, '
"""Small kernels one after another, as of an inference server: utilization counts any resident kernel (nvml.h)."""
SCENARIOS: Mapping[tuple[str, str], tuple[Level, str]] = {
    ("gpu_thermal_margin_low", "h100x8"): (Level.WARN, WORK + "gpus: {3: {set: {temperature: 88}}}"),
    ("gpu_thermal_margin_low", "b200x8"): (Level.FAIL, WORK + "gpus: {3: {set: {temperature: 92}}}"),
    ("gpu_thermal_margin_low", "l40sx4"): (Level.WARN, WORK + "gpus: {3: {set: {margin: -5, temperature: 70}}}"),
    ("gpu_thermal_margin_low", "a100x8"): (Level.FAIL, WORK + "gpus: {3: {set: {temperature: 91}}}"),
    ("gpu_thermal_margin_low", "t4x1"): (Level.WARN, WORK + "gpus: {0: {set: {temperature: 86}}}"),
    ("gpu_memory_temperature_high", "h200x8"): (Level.WARN, WORK + "gpus: {3: {set: {memory_temperature: 97}}}"),
    ("gpu_power_brake", "h100x8"): (Level.FAIL, WORK + "gpus: {3: {set: {clock_events: 136, sm_clock: 600}}}"),
    ("gpu_power_cap_low", "l40sx4"): (Level.WARN, "busy: true\ngpus: {3: {set: {power_limit: 200}}}"),
    ("gpu_power_cap_low", "h100x8"): (
        Level.WARN,
        "busy: true\ngpus: {3: {set: {power_limit: 200, power_limit_requested: 200}}}",
    ),
    ("gpu_power_implausible", "h100x8"): (Level.WARN, WORK + "gpus: {3: {set: {power: 12}}}"),
    ("gpu_hw_slowdown", "a100x8"): (Level.FAIL, WORK + "gpus: {3: {set: {clock_events: 8}}}"),
    ("gpu_hw_slowdown", "h100x8"): (Level.WARN, WORK + "gpus: {3: {set: {clock_events: 32}}}"),
    ("gpu_clock_straggler", "gb200x4"): (Level.WARN, WORK + "gpus: {3: {set: {sm_clock: 1200}}}"),
    ("gpu_spin", "a100x8"): (
        Level.WARN,
        "jobs: [{load: 0.01}]\ngpus: {3: {set: {utilization: 100, memory_utilization: 0, power: 120}}}",
    ),
    ("gpu_utilization_latched", "b200x8"): (Level.WARN, IDLE + "gpus: {3: {latched_utilization: true}}"),
    ("gpu_utilization_latched", "gb200x4"): (Level.WARN, IDLE + "gpus: {3: {latched_utilization: true}}"),
    ("gpu_spin", "h100x8"): (
        Level.WARN,
        'jobs: [{load: 0.01}]\ngpus: {3: {set: {utilization: 100, power: 130}, gpm: {"*": 2}}}',
    ),
    ("gpu_persistence_off", "t4x1"): (Level.WARN, "gpus: {0: {set: {persistence_mode: 0}}}"),
    ("gpu_settings_pending", "h100x8"): (Level.WARN, "gpus: {3: {ecc: {pending: 0}}}"),
    ("pcie_width_degraded", "l40sx4"): (Level.FAIL, "busy: true\ngpus: {3: {set: {pcie_width: 8}}}"),
    ("pcie_width_degraded", "h100migx8"): (Level.FAIL, "busy: true\ngpus: {3: {set: {pcie_width: 8}}}"),
    ("pcie_width_degraded", "t4x1"): (Level.WARN, "busy: true\ngpus: {0: {set: {pcie_width: 8}}}"),
    ("gpu_memory_orphaned", "h100x8"): (Level.WARN, IDLE + "gpus: {3: {set: {memory_used: 9000000000}}}"),
    ("gpu_ecc_uncorrectable", "h100x8"): (Level.WARN, IDLE + "gpus: {3: {ecc: {uncorrected_dram: 2}}}"),
    ("gpu_ecc_uncorrectable", "t4x1"): (Level.WARN, IDLE + "gpus: {0: {ecc: {uncorrected_sram: 1}}}"),
    ("gpu_ecc_sram_threshold", "b200x8"): (Level.FAIL, IDLE + "gpus: {3: {ecc: {threshold_exceeded: 1}}}"),
    ("gpu_ecc_corrected_high", "a100x8"): (Level.WARN, IDLE + "gpus: {3: {ecc: {corrected_sram: 10001}}}"),
    ("gpu_row_remap_failed", "gb200x4"): (Level.FAIL, IDLE + "gpus: {3: {remap: {failed: 1}}}"),
    ("gpu_row_remap_many", "h200x8"): (Level.WARN, IDLE + "gpus: {3: {remap: {uncorrectable: 512}}}"),
    ("gpu_row_remap_banks", "h100x8"): (Level.WARN, IDLE + "gpus: {3: {remap: {banks_none: 1}}}"),
    ("gpu_row_remap_pending", "gb200x4"): (Level.WARN, IDLE + "gpus: {3: {repair: {channel: 1}}}"),
    ("gpu_row_remap_pending", "l40sx4"): (Level.WARN, IDLE + "gpus: {3: {repair: {tpc: 1}}}"),
    ("gpu_memory_unrepairable", "gb200x4"): (Level.FAIL, IDLE + "gpus: {3: {repair: {impossible: 1}}}"),
    ("gpu_row_remap_pending", "h100x8"): (Level.WARN, IDLE + "gpus: {3: {remap: {pending: 1, uncorrectable: 1}}}"),
    ("gpu_retired_pages", "t4x1"): (Level.FAIL, IDLE + "gpus: {0: {set: {retired_uncorrected: 61}}}"),
    ("gpu_page_retirement_pending", "t4x1"): (Level.WARN, IDLE + "gpus: {0: {set: {retired_pending: 1}}}"),
    ("gpu_recovery_action", "h100x8"): (Level.FAIL, IDLE + "gpus: {3: {set: {recovery_action: 2}}}"),
}


def uptime(profile: str, text: str, tmp_path: Path, minutes: float) -> Ward:
    """A node that goes on as the scenario has it."""
    scenario = tmp_path / "scenario.yml"
    scenario.write_text(text)
    report = report_of(profile, scenario)
    ward = Ward()
    ward.report = changed(ward.report, gpus=report.gpus, ports=(), node=report.node, probe=ProbeState())
    return ward.go_on(minutes * 60, every=30)


@pytest.mark.parametrize(("check", "profile"), SCENARIOS)
def test_what_is_injected_is_found(check: str, profile: str, tmp_path: Path) -> None:
    """On the GPU it was done to, as the one primary verdict."""
    level, text = SCENARIOS[check, profile]
    ward = uptime(profile, text, tmp_path, 70 if check == "gpu_settings_pending" else 35)
    found = ward.report.health.primary
    device = ward.report.gpus[min(3, len(ward.report.gpus) - 1)].uuid
    assert [(each.check, each.level, each.device) for each in found] == [(check, level, device)]


@pytest.mark.parametrize(
    ("profile", "text"),
    [
        ("h100x8", "busy: true"),
        ("h100x8", IDLE),
        ("h100migx8", "busy: true"),
        ("h100guestx2", "busy: true"),
        ("gb200x4", IDLE + 'gpus: {"*": {set: {memory_used: 60000000000}}}'),
        ("t4x1", "busy: true"),
        ("l40sx4", 'busy: true\ngpus: {"*": {set: {slot_width: 8}}}'),
        ("l40sx4", LIGHT + "power: 95}}}"),
        ("t4x1", LIGHT + "power: 24}}}"),
        ("a100x8", LIGHT + "power: 120}}}"),
        ("a100x8", "gpus: {3: {set: {power_limit: 350, power_limit_requested: 350}}}\nbusy: true"),
    ],
    ids=[
        *("at the power limit", "idle", "mig", "a guest", "memory of a Grace host", "old driver", "narrow slots"),
        *("light inference on L40S", "light inference on T4", "light inference on A100", "a lower limit"),
    ],
)
def test_what_is_normal_gives_no_verdict(profile: str, text: str, tmp_path: Path) -> None:
    """For an hour and more."""
    assert not uptime(profile, text, tmp_path, 70).transitions


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
