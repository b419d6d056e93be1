"""How verdicts end and what is learnt from it: resets, reboots, quiet, restarts, clocks that are set, pauses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from judging import Ward, acknowledge

from gpumon.health.check import DAY, HOUR
from gpumon.health.verdict import Action, Clearance, Level, VerdictChange

YEAR = 365 * DAY


def sick(ward: Ward) -> Ward:
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


def test_a_reboot_has_to_prove_health() -> None:
    """Ten minutes of it; a GPU that fails again in that time, by whatever, has proved nothing."""
    ward = sick(Ward(gpus=6, ports=0))
    ward.reboot()
    ward.go_on(590)
    assert ward.verdict("gpu_xid_critical", 2)
    ward.go_on(20)
    assert not ward.verdicts
    assert clearances(ward, "gpu_xid_critical") == [Clearance.REBOOT]

    ward = sick(Ward(gpus=6, ports=0))
    ward.reboot()
    ward.go_on(300)
    ward.fault(2, "lost")
    ward.go_on(3600, every=60)
    assert ward.verdict("gpu_xid_critical", 2)


def test_time_in_which_nobody_looked_proves_nothing() -> None:
    """Neither a host that slept after the reboot, nor an agent that was stopped."""
    ward = sick(Ward(gpus=6, ports=0))
    ward.reboot()
    ward.go_on(60)
    ward.pause(3600)
    ward.go_on(60)
    ward.restart()
    ward.go_on(500)
    assert ward.verdict("gpu_xid_critical", 2)


UNWATCHED = pytest.mark.parametrize("unwatched", [{"released": True}, {"fault": "init_failed"}], ids=str)


def watched_again(ward: Ward) -> Ward:
    ward.gpu(2, state={"released": False, "fault": None})
    return ward


@UNWATCHED
def test_a_gpu_that_nobody_can_read_after_a_reboot_has_not_proved_to_be_well(unwatched: dict[str, object]) -> None:
    """However long it was well before that; ten minutes in which it is read prove it."""
    ward = sick(Ward(gpus=6, ports=0))
    ward.go_on(HOUR, every=60)
    ward.reboot()
    ward.gpu(2, state=unwatched)
    ward.go_on(600)
    assert watched_again(ward).go_on(580).verdict("gpu_xid_critical", 2)
    ward.go_on(40)
    assert clearances(ward, "gpu_xid_critical") == [Clearance.REBOOT]


@UNWATCHED
def test_a_gpu_that_nobody_can_read_after_a_reset_has_not_proved_to_be_well(unwatched: dict[str, object]) -> None:
    """However long it was well before that; a minute in which it is read proves it."""
    ward = sick(Ward(gpus=6, ports=0))
    ward.go_on(300)
    ward.reset(2)
    ward.go_on()
    ward.gpu(2, state=unwatched)
    ward.go_on(300)
    assert watched_again(ward).go_on(40).verdict("gpu_xid_critical", 2)
    ward.go_on(40)
    assert clearances(ward, "gpu_xid_critical") == [Clearance.RESET]


@pytest.mark.slow
@UNWATCHED
def test_a_day_in_which_nobody_could_read_the_gpu_is_no_quiet_day(unwatched: dict[str, object]) -> None:
    """A day in which it is read is one."""
    ward = Ward(gpus=6, ports=0)
    ward.event(2, 92)
    ward.go_on()
    ward.gpu(2, state=unwatched)
    ward.go_on(2 * DAY, every=600)
    assert watched_again(ward).go_on(DAY - HOUR, every=600).verdict("gpu_xid", 2)
    ward.go_on(2 * HOUR, every=600)
    assert clearances(ward, "gpu_xid") == [Clearance.QUIET]


def test_quiet_time_is_counted_over_restarts_and_without_pauses() -> None:
    """An hour of quiet is an hour in which somebody looked; a restart does not begin it anew."""
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
    """Years forwards and back, again and again: what is latched stays, what was cleared stays so, news is news."""
    ward = sick(Ward(gpus=6, ports=0))
    ward.fault(1, "missing")
    ward.go_on(90)
    ward.fault(1, None)
    for step in (YEAR, -2 * YEAR, YEAR + 7, -DAY, DAY - 7):
        ward.step(step)
        ward.go_on(60, every=30)
        assert ward.seen() == ["gpu_missing", "gpu_xid_critical"]
    assert acknowledge(ward, "gpu_xid_critical")
    for step in (-YEAR, 2 * YEAR, -YEAR):
        ward.step(step)
        ward.go_on(60, every=30)
        assert ward.seen() == ["gpu_missing"]
    ward.step(-DAY)
    ward.event(2, 95)
    assert ward.go_on().verdict("gpu_xid_critical", 2), "the clock was set back, and it is news all the same"
    ward.step(3 * DAY)
    ward.reset(2)
    ward.go_on(120)
    assert ward.seen() == ["gpu_missing"]
    assert len([transition for transition in ward.transitions if transition.change is VerdictChange.RAISED]) == 3


def test_an_error_after_a_reboot_is_news_though_the_clock_was_ahead_before() -> None:
    """The battery of the clock was empty: the whole boot before was in the future."""
    ward = Ward(gpus=5, ports=0)
    ward.step(YEAR)
    sick(ward)
    assert acknowledge(ward, "gpu_xid_critical")
    ward.step(-YEAR)
    ward.reboot()
    assert not ward.go_on(700, every=20).verdicts
    ward.event(2, 95)
    assert ward.go_on().verdict("gpu_xid_critical", 2)


def test_what_a_reset_has_cured_is_known_to_be_cured_by_it() -> None:
    """A link that came up again after a reset teaches the ladder; one that came up by itself does not."""
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
    """Though the verdict was never cleared; and what the ladder has reached it does not give up while it lasts."""
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


def test_what_was_cured_in_maintenance_teaches_the_ladder_nothing() -> None:
    """Work on a node breaks things and mends them; a fault that was there before it, and was mended in it, counts."""
    for raised, action in ((True, Action.RESET), (False, Action.REBOOT)):
        ward = sick(Ward())
        ward.reset(2)
        ward.go_on(120)
        changes = (
            transition._replace(muted=raised or transition.change is VerdictChange.CLEARED)
            for transition in ward.transitions
        )
        ward.report = replace(ward.report, health=replace(ward.report.health, history=tuple(changes)))
        again = sick(ward).verdict("gpu_xid_critical", 2)
        assert again is not None
        assert again.action is action


def test_the_ladder_forgets_after_a_week() -> None:
    """And what helped one GPU says nothing of another."""
    ward = sick(Ward(gpus=6, ports=0))
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


def test_an_open_verdict_survives_a_restart_without_doubt() -> None:
    """Nothing is raised twice, nothing is in doubt again because a check lasts, or looks back on what is forgotten."""
    ward = Ward(gpus=5, ports=0)
    ward.link(3, 4, up=0.0)
    ward.go_on(180)
    raised = len(ward.transitions)
    for _ in range(3):
        ward.restart()
        assert ward.verdict("nvlink_down", 3)
        ward.go_on(30)
        assert ward.verdict("nvlink_down", 3)
    assert len(ward.transitions) == raised


def test_what_is_so_cannot_be_acknowledged() -> None:
    """It can as soon as it is over; then it stays away, until it comes again."""
    ward = Ward(gpus=5, ports=0)
    ward.fault(1, "missing")
    ward.go_on(90)
    assert not acknowledge(ward, "gpu_missing")
    ward.fault(1, None)
    ward.go_on()
    assert acknowledge(ward, "gpu_missing")
    assert not ward.go_on(600, every=15).verdicts
    ward.fault(1, "missing")
    assert ward.go_on(90).verdict("gpu_missing", 1)


def test_what_follows_is_acknowledged_with_its_cause() -> None:
    """Else it would stand by itself at once, and page for the same fault."""
    ward = Ward(gpus=5, ports=0)
    ward.event(1, 79)
    ward.fault(1, "lost")
    ward.go_on()
    assert [one.check for one in ward.report.health.primary] == ["gpu_lost"]
    ward.fault(1, None)
    ward.go_on()
    assert [one.check for one in acknowledge(ward, "gpu_lost")] == ["gpu_lost", "gpu_xid_critical"]
    assert not ward.go_on(60).verdicts


def test_a_verdict_follows_its_gpu_when_that_tells_its_name() -> None:
    """It was raised of an address; the GPU opens later, with another index, and the verdict is the same one."""
    ward = Ward(gpus=5, ports=0)
    uuid, bus_id = ward.report.gpus[4].uuid, ward.report.gpus[4].bus_id
    ward.gpu(4, state={"uuid": f"pci-{bus_id.lower()}", "fault": "missing"})
    since = ward.go_on(90).verdict("gpu_missing")
    assert since is not None
    ward.gpu(4, state={"uuid": uuid, "fault": None, "index": 9})
    verdict = ward.go_on(10).verdict("gpu_missing")
    assert verdict is not None
    assert (verdict.device, verdict.since) == (uuid, since.since)
    assert len(ward.verdicts) == 1


def test_verdicts_of_a_gpu_that_is_expected_no_more_go() -> None:
    """Not at once: a GPU may be out of the inventory for a moment."""
    ward = sick(Ward(gpus=6, ports=0))
    gpus = ward.report.gpus
    ward.report = replace(ward.report, gpus=(*gpus[:2], *gpus[3:]))
    ward.go_on(300)
    assert ward.seen() == ["gpu_xid_critical"]
    ward.go_on(400)
    assert not ward.verdicts
    assert clearances(ward, "gpu_xid_critical") == [Clearance.GONE]


def test_what_waits_goes_on_waiting_when_the_agent_is_restarted() -> None:
    """A port that is down for four minutes is a verdict, also of an agent that does not live for four minutes."""
    ward = Ward(gpus=1, ports=2)
    ward.port(1, link={"port_up": 0.0})
    ward.go_on(180)
    ports = ward.report.ports
    ward.pause(20)
    ward.restart()
    ward.report = replace(ward.report, ports=())
    ward.go_on(10)
    ward.report = replace(ward.report, ports=ports)
    assert not ward.go_on(30).verdicts, "nobody looked while the agent was away"
    assert ward.go_on(30).seen() == ["ib_port_down"]


def test_what_waited_before_a_long_gap_or_a_reboot_begins_anew() -> None:
    """It may have come and gone meanwhile."""
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
        assert ward.go_on(90).seen() == ["ib_port_down"]


def test_what_is_seen_to_be_well_after_a_restart_waits_no_more() -> None:
    """Its time before the restart does not come back."""
    ward = Ward(gpus=1, ports=2)
    ward.port(1, link={"port_up": 0.0})
    ward.go_on(200)
    ward.restart()
    ward.port(1, link={"port_up": 1.0})
    ward.go_on(10)
    ward.port(1, link={"port_up": 0.0})
    assert not ward.go_on(200).verdicts


def answered_by_a_reboot(slow: bool) -> Ward:  # noqa: FBT001 - of each case
    """GPU 1 fell off the bus, and the node was rebooted for it; a slow boot ends more than six minutes later."""
    ward = Ward(gpus=5, ports=0)
    ward.event(1, 79)
    ward.fault(1, "lost")
    ward.go_on()
    assert [one.action for one in ward.report.health.primary] == [Action.REBOOT]
    ward.reboot()
    if slow:
        ward.pause(500)
    return ward


@pytest.mark.parametrize("slow", [False, True], ids=["quick", "slow"])
@pytest.mark.parametrize(("fault", "check"), [("missing", "gpu_missing"), ("init_failed", "gpu_init_failed")])
def test_what_a_reboot_did_not_bring_back_is_told_as_it_is_now(fault: str, check: str, slow: bool) -> None:  # noqa: FBT001
    """What was so before has been answered, and stands under it; nobody is told to try the same again."""
    ward = answered_by_a_reboot(slow)
    ward.fault(1, fault)
    ward.go_on(120)
    for _ in range(2):
        [told] = ward.report.health.primary
        assert (told.check, told.action) == (check, Action.INSPECT)
        assert [consequence.check for consequence in ward.report.health.consequences(told)] == [
            "gpu_lost",
            "gpu_xid_critical",
        ]
        ward.restart()
        ward.go_on(1200, every=60)
    ward.fault(1, None)
    ward.reboot("boot-3")
    assert not ward.go_on(700, every=20).verdicts


def test_what_was_gone_before_the_reboot_and_is_so_ten_minutes_after_it_is_told() -> None:
    """Until then it may come back: links train, drivers are loaded."""
    ward = Ward(gpus=5, ports=0)
    ward.fault(1, "lost")
    ward.go_on()
    ward.fault(1, "missing")
    ward.go_on(90)
    ward.reboot()
    ward.go_on(500)
    assert [one.check for one in ward.report.health.primary] == ["gpu_lost"]
    ward.go_on(200)
    assert [(one.check, one.action) for one in ward.report.health.primary] == [("gpu_missing", Action.INSPECT)]


def test_what_a_reboot_brought_back_stays_until_it_has_proved_itself() -> None:
    """As any other: it stands by itself, and then it is cleared by the reboot."""
    ward = answered_by_a_reboot(slow=False)
    ward.fault(1, None)
    ward.go_on(590)
    assert [one.check for one in ward.report.health.primary] == ["gpu_lost"]
    assert not ward.go_on(20).verdicts
    assert clearances(ward, "gpu_lost") == [Clearance.REBOOT]
