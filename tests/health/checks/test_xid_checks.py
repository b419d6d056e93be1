"""Checks of Xids and SXids."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from changed_report import changed
from each_case import each_case
from judging import Ward, clear

from gpumon.health import nvlink5, xid_texts, xids
from gpumon.health.catalogue import SHIPPED, XID_ACTIONS
from gpumon.health.policy import Policy
from gpumon.health.products import Expectation
from gpumon.health.verdict import Action, Clearance, Level
from gpumon.health.xid_texts import Scope, scope
from gpumon.health.xids import Class, Severity
from gpumon.model.error_event import SXID, XID
from gpumon.model.instant import Instant
from gpumon.model.node import Driver
from gpumon.model.snapshot import CONTAINER, PciBus

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0

LINK_DOWN = "NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x025001c6 0x00000000 0x0 0x0 0x0 0x0)"
REGISTERS = "NVLink: fatal error detected on link 14({}, 0x0, {}, 0x0, 0x0, 0x0, 0x0)"
ADVICE = "GPU recovery action changed from 0x0 (None) to {}"
THREAD = "Graphics SM Warp Exception on (GPC {}, TPC {}, SM 0): Illegal Instruction Error"


# Critical


@each_case(
    ("code", "text", "action"),
    [
        (48, "", Action.RESET),
        (79, "GPU has fallen off the bus.", Action.REBOOT),
        (119, "", Action.RESET),
        (175, "GPU memory subsystem timeout (type 2) detected", Action.RESET),
        (151, "", Action.REBOOT),
        (54, "", Action.INSPECT),
        (149, LINK_DOWN, Action.RESET),
        (74, REGISTERS.format("0x0", "0x10000"), Action.INSPECT),
        (154, ADVICE.format("0x1 (GPU Reset Required)"), Action.RESET),
        (154, ADVICE.format("0x2 (Node Reboot Required)"), Action.REBOOT),
        (154, ADVICE.format("0x4 (Drain and Reset)"), Action.RESET),
    ],
)
def test_critical(code: int, text: str, action: Action) -> None:
    """A critical Xid is a failure of its GPU at once, and only a repair clears it."""
    ward = Ward(gpus=2)
    ward.event(1, code, text=text)
    verdict = ward.go_on().verdict("gpu_xid_critical", 1)
    assert verdict is not None
    assert (verdict.level, verdict.action) == (Level.FAIL, action)
    assert verdict.reason.startswith(f"Xid {code}: ")
    assert len(ward.verdicts) == 1
    ward.fault(1, "stuck")
    assert ward.go_on(2 * DAY, every=HOUR).level("gpu_xid_critical", 1) is Level.FAIL


@each_case(
    ("code", "text"),
    [
        (64, "Row Remapper: Row is already pending remapping"),
        (74, REGISTERS.format("0x40000000", "0x0")),
        (155, "Nonfatal error"),
    ],
)
def test_the_text_of_an_xid_clears_the_verdict_that_it_denies(code: int, text: str) -> None:
    """NVML had reported the Xid without a text. A later harmless one clears nothing."""
    ward = Ward(gpus=1)
    ward.event(0, code)
    assert ward.go_on().level("gpu_xid_critical") is Level.FAIL
    ward.at += MINUTE
    ward.event(0, code, text=text)
    assert ward.go_on().level("gpu_xid_critical") is Level.FAIL
    first, later = ward.report.events
    ward.report = changed(ward.report, events=(replace(first, text=text, texts=(text,)), later))
    assert ward.go_on(1.5 * MINUTE).level("gpu_xid_critical") is Level.OK


def test_the_xid_with_the_strongest_action_gives_the_reason() -> None:
    """The other Xids are named beside it; the driver's advice gives the reason only if nothing else does."""
    ward = Ward(gpus=1)
    ward.event(0, 169)
    ward.event(0, 48)
    ward.event(0, 154, text=ADVICE.format("0x1 (GPU Reset Required)"))
    verdict = ward.go_on().verdict("gpu_xid_critical")
    assert verdict is not None
    assert verdict.action is Action.REBOOT
    assert verdict.reason.startswith("Xid 169: ")
    assert verdict.reason.endswith("Also Xid 48, 154.")


def test_advice_that_is_withdrawn() -> None:
    """Only the newest advice counts."""
    ward = Ward(gpus=1)
    ward.event(0, 154, text=ADVICE.format("0x1 (GPU Reset Required)"))
    ward.at += 1
    ward.event(0, 154, text="GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")
    assert not ward.go_on(60).verdicts


@pytest.mark.parametrize(
    ("first", "check", "newer", "left"),
    [
        ("0x1 (GPU Reset Required)", "gpu_xid_critical", "0x0 (None)", []),
        ("0x3 (Drain P2P)", "gpu_xid_critical", "0x0 (None)", []),
        ("0x1 (GPU Reset Required)", "gpu_xid_critical", "0x5 (Recover IMEX Domain)", []),
    ],
)
def test_advice_is_over_with_newer_advice(first: str, check: str, newer: str, left: list[str]) -> None:
    """It clears a minute after newer advice; the error for which it was given does not."""
    alone, reasoned = Ward(gpus=1), Ward(gpus=1)
    reasoned.event(0, 95)
    for ward in (alone, reasoned):
        ward.event(0, 154, text=ADVICE.format(first))
        assert ward.go_on(60).level(check, 0) > Level.OK
        ward.event(0, 154, text=ADVICE.format(newer))
        ward.go_on(90)
    assert alone.active_checks() == left
    assert reasoned.level("gpu_xid_critical", 0) is Level.FAIL


@each_case("number", set(range(1, 10)) - {5})
def test_advice_and_its_xid_are_one_fault(number: int) -> None:
    """The driver reports the fault twice with the same action."""
    ward = Ward(gpus=2)
    ward.event(0, 154, text=ADVICE.format(f"{number:#x} (Whatever)"))
    ward.gpu(0, recovery_action=float(number))
    ward.go_on(90)
    assert len(ward.verdicts) == 2
    (primary,) = ward.report.health.primary
    assert {verdict.action for verdict in ward.verdicts.values()} == {primary.action}


def test_xids_of_the_previous_boot_give_no_verdict() -> None:
    ward = Ward(gpus=1)
    ward.event(0, 48)
    ward.reboot()
    assert not ward.go_on(60).verdicts


def test_a_cleared_xid_does_not_come_back() -> None:
    """It stays cleared after a restart of the agent, which reads the event from the store."""
    ward = Ward(gpus=1)
    ward.event(0, 95)
    ward.go_on(10)
    ward.reset(0)
    assert not ward.go_on(90).verdicts
    ward.restart()
    assert not ward.go_on(600, every=15).verdicts


def test_the_operators_catalogue_decides() -> None:
    ward = Ward(gpus=2)
    row = replace(xids.XIDS[92], severity=Severity.CRITICAL, action=xids.RESET)
    ward.report = changed(ward.report, catalogue=SHIPPED.with_rows({92: row}))
    ward.event(0, 92)
    assert ward.go_on().level("gpu_xid_critical", 0) is Level.FAIL


def test_each_action_text_has_a_verdict_action() -> None:
    """Every text that a shipped row or a decoded text can have is in the table, and every text of the table is used."""
    texts = {row.action for row in xids.TABLE} | {xids.unknown(1).action, nvlink5.READ_IT}
    texts |= {bit.action for bit in xid_texts.WORST_FIRST}
    for unit in nvlink5.TABLE:
        texts |= {action for action, _ in (*unit.by_status.values(), *(unit.by_reason or {}).values())}
    assert texts <= XID_ACTIONS.keys()
    assert XID_ACTIONS.keys() <= texts | {xids.REPLACE, "reset the GPU", "reboot the node"}  # those of an operator


def test_an_action_of_the_operators_own_needs_an_inspection() -> None:
    """A row of `xids.file` with a text of the table has that action, with any other text inspect."""
    for text, action in {"page the hardware team": Action.INSPECT, xids.RESET: Action.RESET}.items():
        row = replace(xids.XIDS[79], action=text, ordered=frozenset({"action"}))
        assert SHIPPED.with_rows({79: row}).read(XID, 79).verdict_action is action


# What is nothing


@each_case("code", [45, 43, 63, 93, 106, 141, 160, 162, 171, 172, 177])
def test_information_is_no_verdict(code: int) -> None:
    ward = Ward(gpus=2)
    for _ in range(6):
        ward.event(0, code)
        ward.event(1, code)
        assert not ward.go_on(300, every=60).verdicts


@pytest.mark.parametrize("code", [13, 31, 69, 109])
def test_one_error_of_an_application_is_no_verdict(code: int) -> None:
    """It is a fault of the job."""
    ward = Ward(gpus=2)
    ward.event(1, code)
    assert not ward.go_on(DAY, every=900).verdicts


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (74, REGISTERS.format("0x1", "0x0")),
        (145, "RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a006 0x80000000 0x0 0x0 0x0 0x0)"),
    ],
)
def test_registers_without_an_error_give_no_verdict(code: int, text: str) -> None:
    """The driver's line is recorded as an event."""
    ward = Ward(gpus=1)
    ward.event(0, code, text=text)
    assert not ward.go_on(60).verdicts


def test_xids_from_before_the_first_start_give_no_verdict() -> None:
    ward = Ward(gpus=1)
    for code in (48, 94, 901, 31, 31):
        ward.event(0, code, historical=True)
        ward.at += 300
    assert not ward.go_on(60).verdicts


# Recurring


def test_recurring() -> None:
    """Five bursts of one code within a day are a failure that a reset does not clear; a day without one does."""
    ward = Ward(gpus=2, policy=Policy(disabled=frozenset({"node_repeat_offender"})))
    for _ in range(4):
        ward.event(1, 48)
        ward.go_on(60)
        ward.reset(1)
        ward.go_on(HOUR, every=60)
        assert not ward.verdicts
    ward.event(1, 48)
    verdict = ward.go_on().verdict("gpu_xid_recurring", 1)
    assert verdict is not None
    assert (verdict.level, verdict.action) == (Level.FAIL, Action.INSPECT)
    assert "came 5 times within 24 hours" in verdict.reason
    assert [each.check for each in ward.report.health.primary] == ["gpu_xid_recurring"]
    ward.go_on(10)
    ward.reset(1)
    assert ward.go_on(HOUR, every=60).active_checks() == ["gpu_xid_recurring"]
    assert not ward.go_on(DAY, every=1800).verdicts


@pytest.mark.parametrize(
    ("check", "code", "gpus", "times"),
    [("gpu_xid_recurring", 48, (1,), 5), ("gpu_xid_app_repeated", 31, (1,), 2), ("xid_app_everywhere", 31, (0, 1), 1)],
)
def test_a_recurring_xid_can_be_cleared(check: str, code: int, gpus: tuple[int, ...], times: int) -> None:
    """After the operator cleared it, counting starts again at 0."""
    ward = Ward(gpus=2, policy=Policy(disabled=frozenset({"node_repeat_offender"})))

    def come() -> None:
        for index in gpus * times:
            ward.event(index, code)
            ward.go_on(10)
            if check == "gpu_xid_recurring":
                ward.reset(index)
                ward.go_on(90)

    come()
    assert ward.active_checks() == [check]
    assert [each.check for each in clear(ward, check)] == [check]
    assert not ward.go_on(600, every=60).verdicts
    come()
    assert ward.active_checks() == [check]


def test_a_reset_clears_repeated_errors_of_a_gpu() -> None:
    """The requested reset clears it, and so does the same error on another GPU, which shows a software fault."""
    mended, shared = Ward(gpus=2), Ward(gpus=2)
    for ward in (mended, shared):
        for _ in range(2):
            ward.event(0, 109)
            ward.go_on(300, every=60)
        assert ward.level("gpu_xid_app_repeated", 0) is Level.FAIL
    mended.reset(0)
    assert not mended.go_on(90).verdicts
    shared.event(1, 109)
    shared.go_on(90)
    assert shared.level("gpu_xid_app_repeated", 0) is Level.OK


def test_recurring_counts_one_code_of_one_gpu() -> None:
    """Four bursts on one GPU and one on another are not five; the limit can be configured."""
    few, strict = Ward(gpus=2), Ward(gpus=2, policy=Policy(thresholds={"xid_recurring": 2}))
    for ward in (few, strict):
        for index, code in ((0, 48), (0, 48), (0, 48), (0, 48), (1, 48), (0, 119)):
            ward.event(index, code)
            ward.go_on(300, every=60)
    assert few.level("gpu_xid_recurring", 0) is Level.OK
    assert strict.level("gpu_xid_recurring", 0) is Level.FAIL
    assert strict.level("gpu_xid_recurring", 1) is Level.OK


@pytest.mark.parametrize(
    ("step", "rebooted"),
    [(0.0, False), (30 * DAY, False), (-30 * DAY, False), (0.0, True)],
    ids=["steady", "set-forth", "set-back", "rebooted"],
)
def test_xids_in_a_maintenance_do_not_count_as_recurring(step: float, *, rebooted: bool) -> None:
    """Events in a maintenance do not count; those before and after it do, over clock steps and reboots."""
    ward = Ward(gpus=2, policy=Policy(disabled=frozenset({"node_repeat_offender"})))

    def five(times: int = 5) -> None:
        for _ in range(times):
            ward.event(1, 48)
            ward.go_on(60)
            ward.reset(1)
            ward.go_on(5 * MINUTE, every=10)

    five(1)
    ward.maintain(2 * HOUR)
    five()
    ward.end_windows()
    ward.step(step)
    ward.go_on(HOUR, every=60)
    if rebooted:
        ward.reboot()
        ward.go_on(HOUR, every=60)
    five(3)
    assert ward.level("gpu_xid_recurring", 1) is Level.OK
    assert len(ward.report.events) == 9
    ward.event(1, 48)
    verdict = ward.go_on().verdict("gpu_xid_recurring", 1)
    assert verdict is not None
    assert "came 5 times within 24 hours" in verdict.reason


def test_an_xid_that_continues_after_a_maintenance_counts_as_recurring() -> None:
    ward = Ward(gpus=2, policy=Policy(thresholds={"xid_recurring": 1}))
    ward.maintain(HOUR)
    began_at, began = ward.at, ward.wall
    ward.go_on(HOUR + MINUTE, every=MINUTE)
    ward.event(1, 48)
    event = replace(ward.report.events[-1], first=Instant(ward.report.boot_id, began_at, began))
    ward.report = changed(ward.report, events=(event,))
    assert ward.go_on().level("gpu_xid_recurring", 1) is Level.FAIL


def test_errors_that_repeat_only_in_a_maintenance_give_no_verdict() -> None:
    ward = Ward(gpus=2)
    ward.maintain(HOUR)
    for code in (31, 94, 31, 94):
        ward.event(1, code)
        ward.go_on(5 * MINUTE, every=MINUTE)
    assert ward.verdicts.keys() == {("gpu_xid", ward.report.gpus[1].uuid)}
    assert ward.level("gpu_xid", 1) is Level.WARN
    ward.end_windows()
    assert ward.go_on(MINUTE).level("gpu_xid_app_repeated", 1) is Level.OK
    ward.event(1, 31)
    assert ward.go_on(MINUTE).level("gpu_xid_app_repeated", 1) is Level.OK
    ward.event(1, 31)
    assert ward.go_on(MINUTE).level("gpu_xid_app_repeated", 1) is Level.WARN


# Errors of applications


def test_app_repeated() -> None:
    """The same application error twice within a day on one GPU alone is a warning to inspect it."""
    ward = Ward(gpus=2)
    ward.event(1, 31)
    assert not ward.go_on(DAY - 60, every=1800).verdicts
    ward.event(1, 31)
    verdict = ward.go_on().verdict("gpu_xid_app_repeated", 1)
    assert verdict is not None
    assert (verdict.level, verdict.action) == (Level.WARN, Action.INSPECT)
    assert len(ward.verdicts) == 1
    assert not ward.go_on(DAY, every=1800).verdicts


def test_app_repeated_after_more_than_a_day() -> None:
    ward = Ward(gpus=2)
    ward.event(1, 31)
    ward.go_on(DAY, every=1800)
    ward.event(1, 31)
    assert not ward.go_on(60).verdicts


@pytest.mark.parametrize(
    ("first", "second", "level"),
    [
        (((1, 3),), ((1, 3),), Level.WARN),
        (((1, 3),), ((1, 2),), Level.OK),
        (((1, 3), (0, 2)), ((1, 3), (0, 2)), Level.OK),
        ((), (), Level.OK),
    ],
)
def test_exceptions_of_one_unit_are_a_fault_of_the_gpu(
    first: tuple[tuple[int, int], ...], second: tuple[tuple[int, int], ...], level: Level
) -> None:
    """Exceptions always of the same GPC and TPC are a fault of the GPU."""
    ward = Ward(gpus=2)
    for units in (first, second):
        texts = tuple(THREAD.format(*unit) for unit in units)
        ward.event(0, 13, texts=texts) if texts else ward.event(0, 13)
        ward.go_on(600, every=60)
    assert ward.level("gpu_xid_app_repeated", 0) is level
    assert len(ward.verdicts) == (level is not Level.OK)


def test_context_switches_that_time_out_twice() -> None:
    """Xid 109 twice on one GPU alone is a failure that asks for a reset."""
    ward = Ward(gpus=2)
    for _ in range(2):
        ward.event(0, 109)
        ward.go_on(300, every=60)
    verdict = ward.verdict("gpu_xid_app_repeated", 0)
    assert verdict is not None
    assert (verdict.level, verdict.action) == (Level.FAIL, Action.RESET)


@each_case(("driver", "critical"), [("550.163.01", True), ("570.86.15", False), ("", False)])
def test_a_timeout_asks_for_a_reset_if_the_driver_does_not(driver: str, *, critical: bool) -> None:
    """Drivers before 570 report no recovery action: there one Xid 109 asks for the reset that NVIDIA's table names."""
    ward = Ward(gpus=2)
    ward.report = changed(ward.report, driver=Driver(driver=driver or None))
    ward.event(0, 109)
    verdict = ward.go_on(30).verdict("gpu_xid_critical", 0)
    assert (verdict is not None) is critical
    assert verdict is None or (verdict.level, verdict.action) == (Level.FAIL, Action.RESET)


def test_app_everywhere() -> None:
    """The same code on several GPUs is a software fault: level info, on no GPU."""
    ward = Ward(gpus=2)
    for _ in range(3):
        ward.event(0, 31)
        ward.event(1, 31)
        ward.go_on(600, every=60)
    verdict = ward.verdict("xid_app_everywhere")
    assert verdict is not None
    assert (verdict.level, verdict.action, verdict.device) == (Level.WARN, Action.RESTART, "")
    assert ward.active_checks() == ["xid_app_everywhere"]
    assert not ward.go_on(DAY + 1900, every=1800).verdicts


def test_different_codes_on_different_gpus_give_no_verdict() -> None:
    ward = Ward(gpus=2)
    ward.event(0, 31)
    ward.event(1, 13)
    assert not ward.go_on(60).verdicts


# Storms


def test_storm() -> None:
    """More than a hundred lines a minute of one code for two minutes are a warning."""
    ward = Ward(gpus=2)
    count = 0.0
    for step in range(60):
        count += 10
        ward.gpu(1, xid_errors_total={"13": count, "79": 0.0})
        ward.go_on()
        if step < 24:
            assert not ward.verdicts
    verdict = ward.verdict("gpu_xid_storm", 1)
    assert verdict is not None
    assert (verdict.level, verdict.action) == (Level.WARN, Action.RESTART)
    assert verdict.reason.startswith("Xid 13 occurs 120 times a minute")
    assert len(ward.verdicts) == 1
    assert not ward.go_on(180).verdicts


def test_a_hundred_lines_a_minute_are_no_storm() -> None:
    """A hundred lines a minute of one code give no verdict, and neither do sixty of each of two codes."""
    ward = Ward(gpus=2)
    for step in range(60):
        ward.gpu(0, xid_errors_total={"13": step * 25 / 3})
        ward.gpu(1, xid_errors_total={"13": step * 5.0, "31": step * 5.0})
        assert not ward.go_on().verdicts


# Warnings


@each_case(
    ("code", "text", "action"),
    [
        (92, "", Action.NONE),
        (94, "", Action.RESTART),
        (168, "", Action.INSPECT),
        (161, "", Action.REPLACE),
        (163, "", Action.NONE),
        (32, "", Action.RESTART),
        (121, "", Action.NONE),
        (144, "", Action.INSPECT),
        (74, REGISTERS.format("0x0", "0x0").replace("0x0, 0x0, 0x0)", "0x100000, 0x0, 0x0)"), Action.NONE),
    ],
)
def test_warning(code: int, text: str, action: Action) -> None:
    """The warning is on its GPU until a day has passed without the Xid or the GPU was reset."""
    ward = Ward(gpus=2)
    ward.event(0, code, text=text)
    ward.event(1, code, text=text)
    ward.go_on(10)
    for index in (0, 1):
        verdict = ward.verdict("gpu_xid", index)
        assert verdict is not None
        assert (verdict.level, verdict.action) == (Level.WARN, action)
    assert len(ward.verdicts) == 2
    ward.reset(1)
    assert ward.go_on(90).verdict("gpu_xid", 1) is None
    assert ward.go_on(DAY - 600, every=900).verdict("gpu_xid", 0)
    assert not ward.go_on(HOUR, every=900).verdicts
    assert ward.transitions[-1].cleared_by is Clearance.QUIET


def test_contained_errors_that_repeat() -> None:
    """The first asks to restart the application, the second to reset the GPU."""
    ward = Ward(gpus=1)
    ward.event(0, 94)
    assert ward.go_on(HOUR, every=60).level("gpu_xid") is Level.WARN
    ward.event(0, 94)
    verdict = ward.go_on().verdict("gpu_xid")
    assert verdict is not None
    assert (verdict.level, verdict.action) == (Level.FAIL, Action.RESET)


def test_power_smoothing_that_recovers() -> None:
    """An Xid 162 clears the warning of the Xid 163 before it, and no other."""
    ward = Ward(gpus=2)
    for index in (0, 1):
        ward.event(index, 163)
    ward.event(1, 92)
    ward.go_on()
    assert len(ward.verdicts) == 2
    ward.report = changed(
        ward.report,
        events=tuple(
            replace(event, cancelled_wall=ward.wall) if event.code == 163 else event for event in ward.report.events
        ),
    )
    ward.go_on(90)
    assert ward.verdict("gpu_xid", 0) is None
    assert ward.verdict("gpu_xid", 1)
    assert ward.transitions[-1].cleared_by is Clearance.RECOVERED


def test_unknown_code() -> None:
    """A code of a newer driver is a warning to look it up, until the operator's file has a row for it."""
    ward = Ward(gpus=2)
    ward.event(1, 901)
    verdict = ward.go_on().verdict("gpu_xid_unknown", 1)
    assert verdict is not None
    assert (verdict.level, verdict.reason.partition(" is")[0]) == (Level.WARN, "Xid 901")
    assert len(ward.verdicts) == 1
    ward.go_on(DAY + 60, every=900)
    assert not ward.verdicts

    row = replace(xids.unknown(901), severity=Severity.WARNING, kind=Class.APPLICATION)
    ward.report = changed(ward.report, catalogue=SHIPPED.with_rows({901: row}))
    ward.event(1, 901)
    assert not ward.go_on(60).verdicts


# Checks of the node


def test_nvswitch_error() -> None:
    """A fatal SXid is a failure of the node until a reboot proves health; others are warnings."""
    ward = Ward(gpus=2)
    where: dict[str, Any] = {"bus_id": "0000:05:00.0", "uuid": None, "kind": SXID}
    ward.event(0, 12028, fatal=False, **where)
    assert ward.go_on(60).level("nvswitch_error") is Level.WARN
    ward.event(0, 12020, fatal=True, **where)
    verdict = ward.go_on().verdict("nvswitch_error")
    assert verdict is not None
    assert (verdict.level, verdict.action, verdict.device) == (Level.FAIL, Action.REBOOT, "")
    assert "NVSwitch 0000:05:00.0" in verdict.reason
    assert "SXid 12020" in verdict.reason
    assert ward.go_on(DAY, every=HOUR).verdicts
    ward.reboot()
    assert ward.go_on(590, every=10).verdicts
    assert not ward.go_on(30).verdicts


def test_nvswitch_error_that_is_not_fatal() -> None:
    """It clears after a day without another."""
    ward = Ward(gpus=2)
    ward.event(0, 12028, fatal=False, bus_id="0000:05:00.0", uuid=None, kind=SXID)
    assert ward.go_on(DAY - 600, every=600).level("nvswitch_error") is Level.WARN
    assert not ward.go_on(1800, every=300).verdicts
    assert ward.transitions[-1].cleared_by is Clearance.QUIET


def switch_line(ward: Ward, code: int, *, fatal: bool | None, text: str = "Fatal, Link 30 egress error") -> None:
    ward.event(0, code, fatal=fatal, bus_id="00000000:05:00.0", uuid=None, kind=SXID, text=text)


@each_case(
    ("code", "text", "fatal"),
    [
        (26006, "SOE HALTED", None),
        (26008, "SOE Watchdog error", None),
        (10006, "TSENSE OVERT is asserted. Shutting Down", None),
        (26001, "Failed to reset SOE(0)", None),
        (26002, "Failed to boot SOE(1)", None),
        (10001, "Fatal, Unexpected PRI error", True),
        (10008, "Fatal, Firmware initialization failed", True),
        (22010, "Fatal, Link 03 MINION Watchdog timer ran out", True),
    ],
)
def test_an_error_of_a_whole_switch_fails_the_node(code: int, text: str, *, fatal: bool | None) -> None:
    """A fatal line that names no link, or a switch that is off or not initialised, asks for a reboot of the node.

    The driver's lines: src/common/nvswitch/kernel/ls10 of NVIDIA's open kernel module. It marks the whole switch as
    failed after a watchdog of a MINION, which serves several links, though the line names one.
    """
    ward = Ward(gpus=2)
    switch_line(ward, code, fatal=fatal, text=text)
    verdict = ward.go_on(60).verdict("nvswitch_error")
    assert verdict is not None
    assert (verdict.level, verdict.action) == (Level.FAIL, Action.REBOOT)
    assert ward.level("nvswitch_link_down") is Level.OK
    ward.reboot()
    switch_line(ward, code, fatal=fatal, text=text)
    verdict = ward.go_on(60).verdict("nvswitch_error")
    assert verdict is not None
    assert verdict.action is Action.INSPECT, "a reboot did not help"


@each_case(
    ("code", "text", "fatal", "level"),
    [
        (22013, "Non-fatal, Link 07 Minion Link DLREQ interrupt", False, Level.OK),
        (12021, "Non-fatal, Link 07 egress crumbstore ECC limit error", False, Level.OK),
        (24001, "Non-fatal, Link 07 sourcetrack TCEN0 crubmstore ECC limit error", False, Level.OK),
        (12028, "Non-fatal, Link 32 egress non-posted PRIV error (First)", False, Level.WARN),
    ],
)
def test_an_sxid_that_needs_no_action_gives_no_verdict(code: int, text: str, level: Level, *, fatal: bool) -> None:
    """The driver logs 22013 for each link when it loads, and corrected errors in between; others are warnings.

    Source: NVIDIA/nvtrust#124 (570.195.03, HGX H100), and the list of SXids in the Fabric Manager user guide.
    """
    ward = Ward(gpus=2)
    switch_line(ward, code, fatal=fatal, text=text)
    assert ward.go_on(60).level("nvswitch_error") is level


def test_a_link_of_a_switch_that_stays_down_asks_for_a_reset() -> None:
    """The verdict asks for a reset of the GPU, not for a reboot, and ends when all NVLinks are up again."""
    ward = Ward(gpus=2)
    ward.link(1, 3, up=None)
    switch_line(ward, 20034, fatal=True)
    verdict = ward.go_on(120).verdict("nvswitch_link_down")
    assert verdict is not None
    assert (verdict.level, verdict.action) == (Level.FAIL, Action.RESET)
    assert ward.level("nvswitch_error") is not Level.FAIL
    ward.link(1, 3, up=1.0)
    assert not ward.go_on(120).verdicts


def test_the_link_of_a_switch_follows_the_fault_of_the_gpu() -> None:
    """What the switch reports when a GPU is lost, or its own links are down, is a consequence of that verdict."""
    for fault, cause in (("lost", "gpu_lost"), (None, "nvlink_down")):
        ward = Ward(gpus=2)
        if fault:
            ward.gpu(1, state={"fault": fault, "links": {}})
        else:
            ward.link(1, 3, up=0.0)
        switch_line(ward, 20034, fatal=True)
        ward.go_on(600)
        verdict = ward.verdict("nvswitch_link_down")
        assert verdict is not None
        assert verdict.inhibited_by is not None, cause
        assert verdict.inhibited_by[0] == cause


def test_a_switch_that_reports_planned_work_is_no_fault() -> None:
    """A GPU that is reset in a maintenance or a release takes its links down: no verdict begins."""
    ward = Ward(gpus=2)
    ward.maintain(600)
    ward.go_on(60)
    switch_line(ward, 20034, fatal=True)
    switch_line(ward, 12020, fatal=True)
    ward.link(1, 3, up=None)
    ward.go_on(900)
    assert not [key for key in ward.report.health.open if key[0].startswith("nvswitch")]


def test_an_xid_in_a_release_of_its_gpu_is_no_fault() -> None:
    """A reset logs errors of the GPU that is reset. Others count, but not those of links shortly afterwards."""
    ward = Ward(gpus=2)
    ward.release(0, 600)
    ward.go_on(60)
    ward.event(0, 119)
    ward.event(1, 119)
    ward.end_windows()
    ward.go_on(15)
    ward.event(0, 74, text=REGISTERS.format("0x0", "0x10000"))
    assert ward.go_on(15).level("gpu_xid_critical", 1) is Level.FAIL
    assert ward.level("gpu_xid_critical", 0) is Level.OK
    ward.event(0, 119)
    assert ward.go_on(15).level("gpu_xid_critical", 0) is Level.FAIL


@each_case("code, check", [(24007, "nvswitch_link_down"), (12020, "nvswitch_error")])
def test_a_switch_error_beside_a_lost_gpu(code: int, check: str) -> None:
    """A GPU that fell off the bus explains an error of one link at that time, not one that is always fatal."""
    ward = Ward(gpus=2)
    ward.gpu(1, state={"fault": "lost", "links": {}})
    switch_line(ward, code, fatal=True)
    verdict = ward.go_on(300).verdict(check)
    assert verdict is not None
    assert (verdict.inhibited_by is not None) == (code == 24007)

    ward = Ward(gpus=2)
    ward.gpu(1, state={"fault": "lost", "links": {}})
    ward.go_on(3 * DAY, every=HOUR)
    switch_line(ward, code, fatal=True)
    verdict = ward.go_on(300).verdict(check)
    assert verdict is not None
    assert verdict.inhibited_by is None


def test_a_fatal_error_of_one_link_of_a_switch_asks_for_a_reset() -> None:
    """The verdict stays, although all NVLinks are up, until a GPU has been reset; link Xids of a GPU explain it."""
    ward = Ward(gpus=2)
    switch_line(ward, 24007, fatal=True)
    verdict = ward.go_on(120).verdict("nvswitch_link_down")
    assert verdict is not None
    assert (verdict.level, verdict.action, verdict.inhibited_by) == (Level.FAIL, Action.RESET, None)
    assert ward.go_on(HOUR, every=60).level("nvswitch_link_down") is Level.FAIL
    ward.reset(1)
    assert ward.go_on(300).level("nvswitch_link_down") is Level.OK

    ward = Ward(gpus=2)
    ward.event(1, 74, text=REGISTERS.format("0x0", "0x10000"))
    switch_line(ward, 24007, fatal=True)
    verdict = ward.go_on(300).verdict("nvswitch_link_down")
    assert verdict is not None
    assert verdict.inhibited_by is not None
    assert verdict.inhibited_by[0] == "gpu_xid_critical"


def test_a_thermal_event_of_a_switch_is_a_warning() -> None:
    """It may put links to sleep; it is not fatal, though the line has that word."""
    ward = Ward(gpus=2)
    switch_line(ward, 10004, fatal=True)
    assert ward.go_on(60).level("nvswitch_error") is Level.WARN


def add_unplaced_xid(ward: Ward, code: int) -> None:
    ward.event(0, code, bus_id="00000000:9B:00.0", uuid=None, count=0, kmsg=1)


def on_bus(ward: Ward, **others: str) -> None:
    """Set the PCI bus as the sampler reads it: the GPUs of the inventory and these."""
    bus = PciBus(functions={state.bus_id: "nvidia" for state in ward.report.gpus} | others)
    ward.report = replace(ward.report, inventory=replace(ward.report.inventory, bus=bus))


def test_an_xid_at_an_address_without_a_gpu() -> None:
    """It is a verdict on the node, after the inventory had a minute to find the GPU."""
    ward = Ward(gpus=2)
    add_unplaced_xid(ward, 79)
    assert not ward.go_on(120).verdicts, "nobody has looked at the bus yet"
    on_bus(ward)
    assert not ward.go_on(50).verdicts
    verdict = ward.go_on(30).verdict("xid_unplaced")
    assert verdict is not None
    assert (verdict.level, verdict.action, verdict.device) == (Level.FAIL, Action.REBOOT, "")
    assert "00000000:9B:00.0" in verdict.reason
    ward.gpu(1, state={"bus_id": "00000000:9B:00.0", "uuid": "GPU-9b"})
    ward.go_on(120)
    assert ward.active_checks() == ["gpu_xid_critical"], "now the GPU is known, and it is its own"


def test_an_xid_at_an_address_without_a_gpu_clears_by_an_operator_or_after_a_day() -> None:
    """An application Xid at an address without a GPU gives no verdict."""
    told, quiet, harmless = Ward(gpus=2), Ward(gpus=2), Ward(gpus=2)
    for ward, code in ((told, 79), (quiet, 79), (harmless, 31)):
        on_bus(ward)
        add_unplaced_xid(ward, code)
        ward.go_on(120)
    assert not harmless.verdicts
    assert [each.check for each in clear(told, "xid_unplaced")] == ["xid_unplaced"]
    assert not told.go_on(HOUR, every=60).verdicts
    assert quiet.go_on(DAY - HOUR, every=900).level("xid_unplaced") is Level.FAIL
    assert not quiet.go_on(2 * HOUR, every=900).verdicts


def test_an_xid_of_a_gpu_that_is_not_monitored() -> None:
    """Xids of GPUs that are excluded, passed through, or outside the agent's container give no verdict."""
    given, excluded, contained = Ward(gpus=2), Ward(gpus=2), Ward(gpus=2)
    on_bus(given, **{"00000000:9B:00.0": "vfio-pci"})
    on_bus(excluded, **{"00000000:9B:00.0": "nvidia"})
    excluded.report = changed(excluded.report, excluded=("00000000:9B:00.0",))
    on_bus(contained, **{"00000000:9B:00.0": "nvidia"})
    contained.report = changed(contained.report, expectation=Expectation(count=2, place=CONTAINER))
    for ward in (given, excluded, contained):
        add_unplaced_xid(ward, 79)
        assert not ward.go_on(300, every=15).verdicts


def test_an_error_of_a_link_with_two_severities_is_one_of_the_link() -> None:
    """Lines that are not fatal do not make it an error of the whole switch."""
    texts = ("Non-fatal, Link 44 TREX error", "Fatal, Link 44 TREX error")
    assert scope(24007, texts, fatal=True) is scope(24007, texts[1:], fatal=True) is Scope.LINK


def test_a_fatal_error_without_its_text_is_one_of_the_whole_switch() -> None:
    """An event keeps only its first texts and the newest: the fatal one may be missing."""
    assert scope(24007, ["Non-fatal, Link 44 TREX error"], fatal=True) is Scope.FABRIC
