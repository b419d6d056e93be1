"""How verdicts end: resets, reboots, quiet time, restarts, clock steps and pauses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from changed_report import changed
from judging import Ward, clear

from gpumon.health.check_row import DAY, HOUR
from gpumon.health.verdict import Action, Clearance, Level, VerdictChange

YEAR = 365 * DAY


def with_critical_xid(ward: Ward) -> Ward:
    ward.event(2, 95)
    ward.go_on()
    assert ward.level("gpu_xid_critical", 2) is Level.FAIL
    return ward


def clearances(ward: Ward, check: str) -> list[Clearance | None]:
    return [
        transition.cleared_by
        for transition in ward.transitions
        if transition.change is VerdictChange.CLEARED and transition.verdict.check == check
    ]


def test_a_reboot_clears_a_verdict_after_ten_healthy_minutes() -> None:
    ward = with_critical_xid(Ward(gpus=6, ports=0))
    ward.reboot()
    ward.go_on(590)
    assert ward.verdict("gpu_xid_critical", 2)
    ward.go_on(20)
    assert not ward.verdicts
    assert clearances(ward, "gpu_xid_critical") == [Clearance.REBOOT]

    ward = with_critical_xid(Ward(gpus=6, ports=0))
    ward.reboot()
    ward.go_on(300)
    ward.fault(2, "lost")
    ward.go_on(3600, every=60)
    assert ward.verdict("gpu_xid_critical", 2)


def test_time_without_evaluations_does_not_count_as_healthy() -> None:
    ward = with_critical_xid(Ward(gpus=6, ports=0))
    ward.reboot()
    ward.go_on(60)
    ward.pause(3600)
    ward.go_on(60)
    ward.restart()
    ward.go_on(500)
    assert ward.verdict("gpu_xid_critical", 2)


UNREADABLE = pytest.mark.parametrize("unreadable", [{"released": True}, {"fault": "init_failed"}], ids=str)


def readable_again(ward: Ward) -> Ward:
    ward.gpu(2, state={"released": False, "fault": None})
    return ward


@UNREADABLE
def test_a_gpu_must_be_readable_for_ten_minutes_after_a_reboot(unreadable: dict[str, object]) -> None:
    ward = with_critical_xid(Ward(gpus=6, ports=0))
    ward.go_on(HOUR, every=60)
    ward.reboot()
    ward.gpu(2, state=unreadable)
    ward.go_on(600)
    assert readable_again(ward).go_on(580).verdict("gpu_xid_critical", 2)
    ward.go_on(40)
    assert clearances(ward, "gpu_xid_critical") == [Clearance.REBOOT]


@UNREADABLE
def test_a_gpu_must_be_readable_for_a_minute_after_a_reset(unreadable: dict[str, object]) -> None:
    ward = with_critical_xid(Ward(gpus=6, ports=0))
    ward.go_on(300)
    ward.reset(2)
    ward.go_on()
    ward.gpu(2, state=unreadable)
    ward.go_on(300)
    assert readable_again(ward).go_on(40).verdict("gpu_xid_critical", 2)
    ward.go_on(40)
    assert clearances(ward, "gpu_xid_critical") == [Clearance.RESET]


@pytest.mark.slow
@UNREADABLE
def test_quiet_time_counts_only_while_the_gpu_is_readable(unreadable: dict[str, object]) -> None:
    ward = Ward(gpus=6, ports=0)
    ward.event(2, 92)
    ward.go_on()
    ward.gpu(2, state=unreadable)
    ward.go_on(2 * DAY, every=600)
    assert readable_again(ward).go_on(DAY - HOUR, every=600).verdict("gpu_xid", 2)
    ward.go_on(2 * HOUR, every=600)
    assert clearances(ward, "gpu_xid") == [Clearance.QUIET]


def test_quiet_time_continues_over_restarts_and_excludes_pauses() -> None:
    ward = Ward(gpus=5, ports=0)
    ward.fault(1, "missing")
    ward.go_on(90)
    ward.fault(1, None)
    ward.go_on(40 * 60, every=60)
    ward.pause(2 * HOUR)
    ward.restart()
    ward.go_on(15 * 60, every=60)
    assert ward.verdict("gpu_missing", 1)
    ward.go_on(10 * 60, every=60)
    assert not ward.verdicts
    assert clearances(ward, "gpu_missing") == [Clearance.QUIET]


def test_steps_of_the_wall_clock_clear_nothing_and_raise_nothing() -> None:
    """Steps of the wall clock neither clear latched verdicts nor raise cleared ones, and new errors still count."""
    ward = with_critical_xid(Ward(gpus=6, ports=0))
    ward.fault(1, "missing")
    ward.go_on(90)
    ward.fault(1, None)
    for step in (YEAR, -2 * YEAR, YEAR + 7, -DAY, DAY - 7):
        ward.step(step)
        ward.go_on(60, every=30)
        assert ward.active_checks() == ["gpu_missing", "gpu_xid_critical"]
    assert clear(ward, "gpu_xid_critical")
    for step in (-YEAR, 2 * YEAR, -YEAR):
        ward.step(step)
        ward.go_on(60, every=30)
        assert ward.active_checks() == ["gpu_missing"]
    ward.step(-DAY)
    ward.event(2, 95)
    assert ward.go_on().verdict("gpu_xid_critical", 2), "an error is new although the clock was set back"
    ward.step(3 * DAY)
    ward.reset(2)
    ward.go_on(120)
    assert ward.active_checks() == ["gpu_missing"]
    assert len([transition for transition in ward.transitions if transition.change is VerdictChange.RAISED]) == 3


def test_an_error_after_a_reboot_is_new_if_the_clock_was_ahead_before() -> None:
    ward = Ward(gpus=5, ports=0)
    ward.step(YEAR)
    with_critical_xid(ward)
    assert clear(ward, "gpu_xid_critical")
    ward.step(-YEAR)
    ward.reboot()
    assert not ward.go_on(700, every=20).verdicts
    ward.event(2, 95)
    assert ward.go_on().verdict("gpu_xid_critical", 2)


def test_a_clearance_records_whether_a_reset_or_a_reboot_fixed_the_fault() -> None:
    """Only a link that recovers after a reset or a reboot escalates the action of the next verdict."""
    ward = Ward(gpus=5, ports=0)
    for way, action in (
        (Clearance.RECOVERED, Action.RESET),
        (Clearance.RESET, Action.RESET),
        (Clearance.RESET, Action.REBOOT),
        (Clearance.REBOOT, Action.REBOOT),
        (Clearance.RECOVERED, Action.INSPECT),
    ):
        ward.link(3, 4, up=0.0)
        verdict = ward.go_on(180).verdict("nvlink_down", 3)
        assert verdict is not None
        assert verdict.action is action
        if way is Clearance.RESET:
            ward.reset(3)
        elif way is Clearance.REBOOT:
            ward.reboot()
        ward.go_on(20)  # links train after it
        ward.link(3, 4, up=1.0)
        ward.go_on(600, every=15)
        assert not ward.verdicts
        assert clearances(ward, "nvlink_down")[-1] is way


def test_a_reset_that_does_not_help_is_followed_by_a_reboot() -> None:
    """The action escalates from reset to reboot to inspect while the verdict remains active."""
    ward = Ward(gpus=5, ports=0)
    ward.link(3, 4, up=0.0)
    ward.go_on(180)
    ward.reset(3)
    ward.go_on(200)
    verdict = ward.verdict("nvlink_down", 3)
    assert verdict is not None
    assert verdict.action is Action.RESET, "links take a while to train"
    ward.go_on(200)
    verdict = ward.verdict("nvlink_down", 3)
    assert verdict is not None
    assert verdict.action is Action.REBOOT
    ward.restart()
    ward.go_on(60)
    assert ward.verdicts[verdict.key].action is Action.REBOOT
    ward.reboot()
    ward.go_on(20 * 60, every=30)
    assert ward.verdicts[verdict.key].action is Action.INSPECT
    ward.go_on(8 * DAY, every=3600)
    assert ward.verdicts[verdict.key].action is Action.INSPECT


def test_faults_raised_in_maintenance_do_not_escalate_the_action() -> None:
    for raised, action in ((True, Action.RESET), (False, Action.REBOOT)):
        ward = with_critical_xid(Ward())
        ward.reset(2)
        ward.go_on(120)
        changes = (
            transition._replace(muted=raised or transition.change is VerdictChange.CLEARED)
            for transition in ward.transitions
        )
        ward.report = replace(ward.report, health=replace(ward.report.health, history=tuple(changes)))
        again = with_critical_xid(ward).verdict("gpu_xid_critical", 2)
        assert again is not None
        assert again.action is action


def test_the_escalation_of_an_action_expires_after_a_week() -> None:
    ward = with_critical_xid(Ward(gpus=6, ports=0))
    ward.reset(2)
    ward.go_on(120)
    assert clearances(ward, "gpu_xid_critical") == [Clearance.RESET]
    ward.event(5, 95)
    ward.go_on()
    other = ward.verdict("gpu_xid_critical", 5)
    assert other is not None
    assert other.action is Action.RESET
    ward.go_on(8 * DAY, every=3600)
    ward.event(2, 95)
    again = ward.go_on().verdict("gpu_xid_critical", 2)
    assert again is not None
    assert again.action is Action.RESET


def test_an_active_fault_cannot_be_cleared() -> None:
    """A verdict can be cleared only after its fault ends, and a recurrence raises it again."""
    ward = Ward(gpus=5, ports=0)
    ward.fault(1, "missing")
    ward.go_on(90)
    assert not clear(ward, "gpu_missing")
    ward.fault(1, None)
    ward.go_on()
    assert clear(ward, "gpu_missing")
    assert not ward.go_on(600, every=15).verdicts
    ward.fault(1, "missing")
    assert ward.go_on(90).verdict("gpu_missing", 1)


def test_a_clearing_includes_inhibited_verdicts() -> None:
    """A cleared verdict takes the verdicts that it inhibits with it, so that none of them becomes primary."""
    ward = Ward(gpus=5, ports=0)
    ward.event(1, 79)
    ward.fault(1, "lost")
    ward.go_on()
    assert [each.check for each in ward.report.health.primary] == ["gpu_lost"]
    ward.fault(1, None)
    ward.go_on()
    assert [each.check for each in clear(ward, "gpu_lost")] == ["gpu_lost", "gpu_xid_critical"]
    assert not ward.go_on(60).verdicts


def test_a_verdict_of_a_pci_address_moves_to_the_uuid_of_its_gpu() -> None:
    ward = Ward(gpus=5, ports=0)
    uuid, bus_id = ward.report.gpus[4].uuid, ward.report.gpus[4].bus_id
    ward.gpu(4, state={"uuid": f"pci-{bus_id.lower()}", "fault": "missing"})
    since = ward.go_on(90).verdict("gpu_missing")
    assert since is not None
    ward.gpu(4, state={"uuid": uuid, "fault": None, "index": 9})
    verdict = ward.go_on(10).verdict("gpu_missing")
    assert verdict is not None
    assert (verdict.device, verdict.raised) == (uuid, since.raised)
    assert len(ward.verdicts) == 1


def test_verdicts_of_a_gpu_that_is_no_longer_expected_are_cleared() -> None:
    ward = with_critical_xid(Ward(gpus=6, ports=0))
    gpus = ward.report.gpus
    ward.report = changed(ward.report, gpus=(*gpus[:2], *gpus[3:]))
    ward.go_on(300)
    assert ward.active_checks() == ["gpu_xid_critical"]
    ward.go_on(400)
    assert not ward.verdicts
    assert clearances(ward, "gpu_xid_critical") == [Clearance.GONE]


def test_a_pending_verdict_keeps_its_time_over_a_restart() -> None:
    ward = Ward(gpus=1, ports=2)
    ward.port(1, link={"port_up": 0.0})
    ward.go_on(180)
    ports = ward.report.ports
    ward.pause(20)
    ward.restart()
    ward.report = changed(ward.report, ports=())
    ward.go_on(10)
    ward.report = changed(ward.report, ports=ports)
    assert not ward.go_on(30).verdicts, "the time without the agent does not count"
    assert ward.go_on(30).active_checks() == ["ib_port_down"]


def test_a_pending_verdict_starts_again_after_a_long_gap_or_a_reboot() -> None:
    for reboots in (False, True):
        ward = Ward(gpus=1, ports=2)
        ward.port(1, link={"port_up": 0.0})
        ward.go_on(200)
        if reboots:
            ward.reboot()
            ward.go_on(300)
        else:
            ward.pause(300)
            ward.restart()
        assert not ward.go_on(180).verdicts
        assert ward.go_on(90).active_checks() == ["ib_port_down"]


def test_a_healthy_reading_after_a_restart_ends_a_pending_verdict() -> None:
    ward = Ward(gpus=1, ports=2)
    ward.port(1, link={"port_up": 0.0})
    ward.go_on(200)
    ward.restart()
    ward.port(1, link={"port_up": 1.0})
    ward.go_on(10)
    ward.port(1, link={"port_up": 0.0})
    assert not ward.go_on(200).verdicts


def rebooted_after_a_lost_gpu(slow: bool) -> Ward:  # noqa: FBT001 - a test case
    """Return a node rebooted because GPU 1 fell off the bus; a slow boot takes more than six minutes longer."""
    ward = Ward(gpus=5, ports=0)
    ward.event(1, 79)
    ward.fault(1, "lost")
    ward.go_on()
    assert [each.action for each in ward.report.health.primary] == [Action.REBOOT]
    ward.reboot()
    if slow:
        ward.pause(500)
    return ward


@pytest.mark.parametrize("slow", [False, True], ids=["quick", "slow"])
@pytest.mark.parametrize(("fault", "check"), [("missing", "gpu_missing"), ("init_failed", "gpu_init_failed")])
def test_a_gpu_that_fails_after_the_reboot_has_a_new_primary_verdict(fault: str, check: str, slow: bool) -> None:  # noqa: FBT001
    """The current fault inhibits the verdicts from before the reboot and asks for an inspection."""
    ward = rebooted_after_a_lost_gpu(slow)
    ward.fault(1, fault)
    ward.go_on(120)
    for _ in range(2):
        [primary] = ward.report.health.primary
        assert (primary.check, primary.action) == (check, Action.INSPECT)
        assert [consequence.check for consequence in ward.report.health.consequences(primary)] == [
            "gpu_lost",
            "gpu_xid_critical",
        ]
        ward.restart()
        ward.go_on(1200, every=60)
    ward.fault(1, None)
    ward.reboot("boot-3")
    assert not ward.go_on(700, every=20).verdicts


def test_a_gpu_missing_before_and_after_the_reboot_is_raised_after_ten_minutes() -> None:
    ward = Ward(gpus=5, ports=0)
    ward.fault(1, "lost")
    ward.go_on()
    ward.fault(1, "missing")
    ward.go_on(90)
    ward.reboot()
    ward.go_on(500)
    assert [each.check for each in ward.report.health.primary] == ["gpu_lost"]
    ward.go_on(200)
    assert [(each.check, each.action) for each in ward.report.health.primary] == [("gpu_missing", Action.INSPECT)]
