"""Checks of the NVLink fabric."""

from __future__ import annotations

from dataclasses import replace

import pytest
from changed_report import changed
from each_case import each_case
from judging import Ward

from gpumon.health.verdict import NODE, Action, Level
from gpumon.model.error_event import SXID
from gpumon.model.nvlink import CHECKS, C2cLink, Fabric
from gpumon.model.snapshot import GUEST, PciBus

SWITCH = "00000000:05:00.0"


def fabric(ward: Ward, index: int, **readings: object) -> None:
    ward.gpu(index, state={"fabric": Fabric(**readings)})  # type: ignore[arg-type]


def test_a_fabric_manager_that_does_not_run_is_a_failure() -> None:
    """A fabric manager that is down for a minute fails; a shorter interruption raises no verdict."""
    ward = Ward()
    ward.node(fabric_manager_up=1.0)
    assert not ward.go_on(60).verdicts
    ward.node(fabric_manager_up=0.0)
    assert not ward.go_on(55).verdicts
    assert ward.go_on(15).level("fabric_manager_down") is Level.FAIL
    ward.node(fabric_manager_up=1.0)
    assert not ward.go_on(90).verdicts


@pytest.mark.parametrize(
    "unneeded",
    [
        {"peers": {}, "fabric": Fabric(state=0.0)},
        {"fabric": Fabric(state=3.0, status=0.0, cluster_uuid="0c7e", clique_id="2")},
    ],
    ids=["no NVSwitches", "a compute tray, whose switch trays run it"],
)
def test_a_fabric_manager_that_no_gpu_needs_may_be_down(unneeded: dict[str, object]) -> None:
    ward = Ward(gpus=4)
    ward.node(fabric_manager_up=0.0)
    for index in range(4):
        ward.gpu(index, state=unneeded)
    assert not ward.go_on(600, every=15).verdicts


def test_a_fabric_manager_that_is_not_installed_raises_no_verdict() -> None:
    assert not Ward().go_on(600, every=15).verdicts


def test_services_may_stop_at_boot_and_while_the_driver_is_unloaded_or_released() -> None:
    ward = Ward(uptime=0.0)
    ward.node(fabric_manager_up=0.0)
    fabric(ward, 0, state=2.0)
    assert not ward.go_on(290).verdicts
    ward = Ward()
    ward.node(fabric_manager_up=0.0, nvml_up=0.0)
    assert not ward.go_on(50).verdicts
    ward = Ward()
    ward.node(fabric_manager_up=0.0)
    ward.gpu(0, state={"released": True})
    assert not ward.go_on(600, every=15).verdicts


def test_three_stops_in_ten_minutes_are_a_warning() -> None:
    ward = Ward()
    ward.node(fabric_manager_up=1.0, service_stops_total={"fabric_manager": 7.0, "imex": 0.0})
    ward.go_on(60)
    for total in (8.0, 9.0):
        ward.node(service_stops_total={"fabric_manager": total, "imex": 0.0})
        ward.go_on(60)
    assert not ward.go_on(600, every=15).verdicts
    for total in (10.0, 11.0, 12.0):
        ward.node(service_stops_total={"fabric_manager": total, "imex": 0.0})
        ward.go_on(60)
    assert ward.level("fabric_manager_flapping") is Level.WARN
    assert not ward.go_on(700, every=15).verdicts


@each_case(
    "readings",
    [
        {"state": 1.0},
        {"state": 2.0},
        {"state": 3.0, "status": 999.0},
        *({"state": 3.0, "status": 0.0, "health": {check: 1.0}} for check in CHECKS),
        *({"state": 3.0, "status": 0.0, "health_summary": summary} for summary in (2.0, 3.0, 4.0)),
    ],
)
def test_each_unhealthy_fabric_reading_raises_a_verdict(readings: dict[str, object]) -> None:
    """Five minutes of an unhealthy state, status, check or summary raise a verdict for that GPU alone."""
    ward = Ward()
    fabric(ward, 2, **readings)
    assert not ward.go_on(285).verdicts
    ward.go_on(30)
    assert set(ward.verdicts) == {("fabric_unhealthy", ward.report.gpus[2].uuid)}


LIMITED = ("degraded_bandwidth", "route_recovery", "access_timeout_recovery")


@each_case(
    "readings, level",
    [
        *(({"health": {check: 1.0}}, Level.WARN if check in LIMITED else Level.FAIL) for check in CHECKS),
        ({"health": {"route_unhealthy": 1.0, "degraded_bandwidth": 1.0}}, Level.FAIL),
        ({"health_summary": 3.0}, Level.WARN),
        ({"health_summary": 2.0}, Level.FAIL),
    ],
)
def test_limited_capacity_and_recoveries_only_warn(readings: dict[str, object], level: Level) -> None:
    """Jobs still run with less bandwidth and while routes are recovered."""
    ward = Ward()
    fabric(ward, 2, state=3.0, status=0.0, **readings)
    assert ward.go_on(330).level("fabric_unhealthy", 2) is level


def test_a_registration_that_does_not_end_fails_only_if_no_gpu_completes_it() -> None:
    """With FABRIC_MODE=1 a GPU outside any partition stays in progress; without a fabric manager all do."""
    ward = Ward()
    for index in range(4):
        fabric(ward, index, state=3.0, status=0.0)
    fabric(ward, 2, state=2.0)
    assert ward.go_on(330).level("fabric_unhealthy", 2) is Level.WARN
    ward.gpu(1, state={"fabric": None})
    assert ward.go_on(330).level("fabric_unhealthy", 2) is Level.WARN
    for index in range(4):
        fabric(ward, index, state=2.0)
    ward.go_on(330)
    assert {ward.level("fabric_unhealthy", index) for index in range(4)} == {Level.FAIL}


def test_a_guest_needs_no_fabric_manager() -> None:
    """The host runs it: a unit that is enabled in the guest's image exits for lack of NVSwitches."""
    ward = Ward()
    for index in range(4):
        fabric(ward, index, state=3.0, status=0.0)
    ward.report = changed(ward.report, expectation=replace(ward.report.expectation, place=GUEST))
    for stops in range(5):
        ward.node(fabric_manager_up=0.0, service_stops_total={"fabric_manager": float(stops)})
        ward.go_on(120, every=15)
    assert not ward.verdicts


def test_a_guest_with_nvswitches_runs_the_fabric_manager_itself() -> None:
    """Clouds give the NVSwitches to a guest that has all GPUs (NVIDIA Fabric Manager user guide, full passthrough)."""
    ward = Ward()
    fabric(ward, 0, state=3.0, status=0.0)
    inventory = replace(ward.report.inventory, bus=PciBus(functions={}, nvswitches=4))
    ward.report = replace(ward.report, inventory=inventory)
    ward.report = changed(ward.report, expectation=replace(ward.report.expectation, place=GUEST))
    ward.node(fabric_manager_up=0.0)
    assert ward.go_on(330).level("fabric_manager_down") is Level.FAIL


def test_a_guest_with_limited_adapters_runs_the_fabric_manager_itself() -> None:
    """From Blackwell on it reaches the NVSwitches through limited functions, whose counters answer EINVAL."""
    ward = Ward()
    fabric(ward, 0, state=3.0, status=0.0)
    ward.report = changed(
        ward.report,
        expectation=replace(ward.report.expectation, place=GUEST),
        ports=tuple(replace(port, restricted=True) for port in ward.report.ports),
    )
    ward.node(fabric_manager_up=0.0)
    assert ward.go_on(330).level("fabric_manager_down") is Level.FAIL


def test_a_fabric_manager_that_ended_in_a_container_stays_down_after_a_restart_of_the_agent() -> None:
    """Only a running process shows that there is one outside of systemd."""
    ward = Ward()
    fabric(ward, 0, state=3.0, status=0.0)
    ward.node(fabric_manager_up=0.0)
    assert ward.go_on(330).level("fabric_manager_down") is Level.FAIL
    ward.node(fabric_manager_up=None)
    ward.restart()
    assert ward.go_on(600).level("fabric_manager_down") is Level.FAIL
    ward.node(fabric_manager_up=1.0)
    assert ward.go_on(330).level("fabric_manager_down") is Level.OK


def test_every_fabric_check_has_a_description() -> None:
    ward = Ward()
    fabric(ward, 2, state=3.0, health=dict.fromkeys(CHECKS, 1.0))
    verdict = ward.go_on(330).verdict("fabric_unhealthy", 2)
    assert verdict is not None
    assert "_" not in verdict.reason


def test_a_guest_without_a_fabric_is_healthy() -> None:
    """Fabric state 0 is healthy, whatever the status is."""
    ward = Ward()
    for index in range(4):
        fabric(ward, index, state=0.0, status=3.0)
    assert not ward.go_on(900, every=15).verdicts


def test_a_stopped_fabric_manager_inhibits_fabric_and_link_verdicts() -> None:
    ward = Ward()
    ward.node(fabric_manager_up=1.0)
    ward.go_on(60)
    ward.node(fabric_manager_up=0.0)
    for index in range(4):
        fabric(ward, index, state=2.0)
        for link in range(18):
            ward.link(index, link, up=0.0)
    ward.go_on(400)
    assert ward.active_checks() == ["fabric_manager_down", "fabric_unhealthy", "nvlink_down"]
    assert [each.check for each in ward.report.health.primary] == ["fabric_manager_down"]


def test_imex_is_checked_only_on_a_multi_node_fabric() -> None:
    """A stopped IMEX is a warning after ten minutes, and only on a multi-node fabric."""
    ward = Ward(gpus=4)
    ward.node(imex_up=0.0)
    assert not ward.go_on(1200, every=30).verdicts
    for index in range(4):
        fabric(ward, index, state=3.0, status=0.0, cluster_uuid="0c7e", clique_id="2")
    assert not ward.go_on(570).verdicts
    assert ward.go_on(60).level("imex_unhealthy") is Level.WARN


def test_the_verdict_of_a_disabled_service_is_cleared() -> None:
    ward = Ward(gpus=4)
    ward.node(imex_up=0.0)
    for index in range(4):
        fabric(ward, index, state=3.0, status=0.0, cluster_uuid="0c7e", clique_id="2")
    assert ward.go_on(660, every=15).level("imex_unhealthy") is Level.WARN
    ward.node(imex_up=None)
    ward.notice("links", "services is left aside")
    assert ward.go_on(660, every=15).level("imex_unhealthy") is Level.WARN
    ward.notice("links", None)
    assert ward.go_on(120).level("imex_unhealthy") is Level.OK


@pytest.mark.parametrize(
    ("code", "fatal", "level"),
    [(12020, True, Level.FAIL), (12022, False, Level.WARN), (12022, None, Level.WARN)],
)
def test_an_error_of_an_nvswitch_stays_for_a_day(code: int, fatal: bool | None, level: Level) -> None:  # noqa: FBT001 - a test case
    """A fatal NVSwitch error remains until a reboot, any other expires after a day."""
    ward = Ward()
    ward.event(0, code, kind=SXID, bus_id=SWITCH, uuid=None, fatal=fatal)
    verdict = ward.go_on().verdict("nvswitch_error")
    assert verdict is not None
    assert (verdict.level, verdict.evidence["nvswitch"]) == (level, SWITCH)
    assert bool(ward.go_on(90000, every=600).verdicts) is bool(fatal)


def test_a_chip_to_chip_link_that_is_down_is_a_failure() -> None:
    """A chip-to-chip link that is down for two minutes asks for a reboot."""
    ward = Ward(gpus=4)
    for index in range(4):
        ward.gpu(index, state={"c2c_links": {str(link): C2cLink(up=1.0) for link in range(5)}})
    assert not ward.go_on(300).verdicts
    ward.gpu(1, state={"c2c_links": {str(link): C2cLink(up=float(link != 3)) for link in range(5)}})
    assert not ward.go_on(105).verdicts
    verdict = ward.go_on(30).verdict("c2c_link_down", 1)
    assert verdict is not None
    assert verdict.action is Action.REBOOT
    assert "link 3" in verdict.reason


def test_a_crash_of_imex_is_one_warning_of_the_node() -> None:
    """The driver requests action 5 on all GPUs, with Xid 154: the node warns until IMEX is back, and no GPU fails."""
    ward = Ward()
    for index in range(4):
        ward.gpu(index, recovery_action=5.0)
        ward.event(index, 154, text="GPU recovery action changed from 0x0 (None) to 0x5 (Recover IMEX Domain)")
    ward.go_on(90)
    (verdict,) = ward.verdicts.values()
    assert (verdict.check, verdict.device) == ("imex_recovery_requested", NODE)
    assert (verdict.level, verdict.action) == (Level.WARN, Action.RESTART)
    assert "restart nvidia-imex" in verdict.reason
    for index in range(4):
        ward.gpu(index, recovery_action=0.0)
    assert not ward.go_on(90).verdicts


def test_a_gpu_that_needs_a_reset_fails_during_a_crash_of_imex() -> None:
    """A request for a reset of one GPU fails that GPU beside the warning of the node."""
    ward = Ward()
    for index in range(4):
        ward.gpu(index, recovery_action=5.0 if index else 1.0)
    ward.go_on(90)
    assert ward.level("gpu_recovery_action", 0) is Level.FAIL
    assert ward.level("imex_recovery_requested") is Level.WARN


def test_a_stopped_imex_whose_recovery_is_requested_is_one_fault() -> None:
    """While the daemon stays stopped after its crash, the request of the driver is the primary verdict."""
    ward = Ward()
    ward.node(imex_up=0.0)
    for index in range(4):
        fabric(ward, index, state=3.0, status=0.0, cluster_uuid="0c7e", clique_id="2")
        ward.gpu(index, recovery_action=5.0)
    ward.go_on(720, every=15)
    assert [each.check for each in ward.report.health.primary] == ["imex_recovery_requested"]
