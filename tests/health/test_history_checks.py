"""The node's own history: reboots, restarts of the agent, repairs that do not last, and the score."""

from __future__ import annotations

from dataclasses import replace

import pytest
from judging import Ward

from gpumon.health.agent_runs import AgentRun
from gpumon.health.check import DAY, HOUR, MINUTE
from gpumon.health.repairs import repairs
from gpumon.health.verdict import FAIL, WARN, Action, Clearance, Level, Verdict, VerdictChange, VerdictTransition
from gpumon.state.health_reducer import facts, take
from gpumon.state.messages import VerdictTransitions


class Node(Ward):
    """With lives of the agent."""

    def __init__(self) -> None:
        super().__init__(gpus=4, ports=0)
        self.live()

    def live(self, version: str = "1.0") -> None:
        """The agent starts."""
        agent_run = AgentRun(
            boot_id=self.report.boot_id, version=version, began=self.wall, began_at=self.at, last=self.wall
        )
        self.report = replace(self.report, agent_runs=(*self.report.agent_runs, agent_run))

    def end(self, *, stopped: bool = False, planned: bool = False) -> None:
        """Of its present life."""
        *former, last = self.report.agent_runs
        last = replace(last, last=self.wall, stopped=self.wall if stopped else None, planned=planned)
        self.report = replace(self.report, agent_runs=(*former, last))

    def crash(self, *, stopped: bool = False, version: str = "1.0") -> None:
        """The agent ends, and is started again."""
        self.end(stopped=stopped)
        self.at += 5.0
        self.restart()
        self.live(version)
        self.go_on(10)

    def boot(self, *, stopped: bool = False, planned: bool = False, number: int = 2, down: float = 7 * MINUTE) -> None:
        """The host goes down, and comes up seven minutes later, or so many seconds."""
        self.end(stopped=stopped, planned=planned)
        self.step(down)
        self.reboot(f"boot-{number}")
        self.live()
        self.go_on(10)


def test_a_reboot_that_nobody_asked_for_is_told() -> None:
    """For a day, over restarts of the agent, and not again afterwards; a clock that is set changes nothing."""
    node = Node()
    node.go_on(60)
    node.boot()
    verdict = node.verdict("node_unexpected_reboot")
    assert verdict is not None
    assert verdict.level is WARN
    assert "booted 7 min after it was last alive" in verdict.reason
    node.crash(stopped=True)
    node.step(-3 * DAY)
    node.go_on(20 * HOUR, every=600)
    assert node.active_checks() == ["node_unexpected_reboot"]
    node.step(9 * DAY)
    node.go_on(5 * HOUR, every=600)
    assert not node.verdicts
    node.step(-9 * DAY)
    node.crash(stopped=True)
    assert not node.go_on(HOUR, every=60).verdicts
    assert [transition.cleared_by for transition in node.transitions if transition.change is VerdictChange.CLEARED] == [
        Clearance.QUIET
    ]


@pytest.mark.parametrize(
    ("down", "words"),
    [
        (20.0, "was booted less than a minute after it was last alive."),
        (MINUTE, "was booted 1 min after it was last alive."),
        (3 * HOUR, "was booted 3 h after it was last alive."),
        (-DAY, "was booted again; the downtime is unknown."),
    ],
)
def test_how_long_the_node_was_down_is_told_where_that_is_known(down: float, words: str) -> None:
    """Neither a quick reset nor a clock that is set back is none at all."""
    node = Node()
    node.go_on(60)
    node.boot(down=down)
    verdict = node.verdict("node_unexpected_reboot")
    assert verdict is not None
    assert verdict.reason.endswith(words)
    assert verdict.evidence == ({"down_seconds": pytest.approx(down)} if down > 0 else {})


@pytest.mark.parametrize("how", [{"stopped": True}, {"planned": True}])
def test_a_planned_reboot_is_none(how: dict[str, bool]) -> None:
    """Every shutdown stops the agent in order; and in maintenance a node may go down in any way."""
    node = Node()
    node.go_on(60)
    node.boot(**how)
    assert not node.go_on(HOUR, every=60).verdicts


def test_an_agent_that_crashes_again_and_again_is_told() -> None:
    """Three starts after crashes in ten minutes; an hour later it is forgiven."""
    node = Node()
    for _ in range(2):
        node.crash()
        assert not node.verdicts
    node.crash()
    assert node.level("gpumon_restarting") is Level.WARN
    node.go_on(70 * MINUTE, every=60)
    assert not node.verdicts


def test_upgrades_and_restarts_by_people_are_no_crashes() -> None:
    """An end in order is none, and neither is another version, however the old one ended."""
    node = Node()
    for number in range(6):
        node.crash(stopped=True)
        node.crash(version=f"1.{number + 1}")
    for _ in range(4):
        node.crash(stopped=True)
        node.go_on(11 * MINUTE, every=30)
        node.crash()
    assert not node.verdicts


def repaired(
    ward: Ward, index: int | None, cleared_by: Clearance, *, level: Level = FAIL, check: str = "gpu_xid_critical"
) -> None:
    """Something was wrong, and was cleared in this way."""
    one = Verdict(
        check=check,
        device="" if index is None else ward.report.gpus[index].uuid,
        level=level,
        reason="It was broken.",
        action=Action.RESET,
        since=ward.wall,
        seen=ward.wall,
        seen_at=ward.at,
        boot_id=ward.report.boot_id,
    )
    raised = VerdictTransition(
        verdict=one, change=VerdictChange.RAISED, wall=ward.wall, at=ward.at, boot_id=ward.report.boot_id
    )
    ward.report = take(
        ward.report,
        VerdictTransitions(transitions=(raised, raised._replace(change=VerdictChange.CLEARED, cleared_by=cleared_by))),
    )


def test_a_gpu_that_is_repaired_again_and_again_is_to_be_replaced() -> None:
    """Three times in 30 days, and it is named; what a person has acknowledged counts from then on."""
    node = Ward(gpus=4, ports=0)
    for _ in range(2):
        repaired(node, 2, Clearance.RESET)
        node.go_on(5 * DAY, every=HOUR * 6)
    assert not node.verdicts
    repaired(node, 2, Clearance.REBOOT)
    verdict = node.go_on().verdict("node_repeat_offender")
    assert verdict is not None
    assert (verdict.level, verdict.action) == (WARN, Action.REPLACE)
    assert verdict.reason == "GPU 2 had to be repaired 3 times in 30 days (2 x reset, 1 x reboot)."
    node.reboot()
    node.go_on(3600, every=60)
    assert node.verdict("node_repeat_offender"), "a reboot does not make it forgotten"
    repaired(node, None, Clearance.ACKNOWLEDGED, level=WARN, check="node_repeat_offender")
    assert not node.go_on(3600, every=60).verdicts


@pytest.mark.parametrize("cleared_by", [Clearance.REBOOT, Clearance.RESET])
def test_what_gpus_share_is_not_blamed_on_the_first_of_them(cleared_by: Clearance) -> None:
    """Repaired together each time: nobody replaces a board for its switch or its power. One that was alone is named."""
    node = Ward(gpus=4, ports=0)
    for number in range(3):
        for index in (1, 2):
            repaired(node, index, cleared_by)
        if number == 1:
            repaired(node, 3, cleared_by)
        node.go_on(DAY * 3, every=HOUR * 6)
        node.reboot(f"boot-{number + 2}")
        node.go_on(3600, every=60)
    verdict = node.verdict("node_repeat_offender")
    assert verdict is not None
    assert verdict.action is Action.INSPECT
    assert verdict.reason == f"GPUs 1, 2 had to be repaired together 3 times in 30 days (3 x {cleared_by})."
    repaired(node, 2, Clearance.RESET)
    verdict = node.go_on(DAY, every=HOUR).verdict("node_repeat_offender")
    assert verdict is not None
    assert verdict.action is Action.INSPECT, "the first that has as many, and had them together with another"


def test_work_in_maintenance_is_no_repair() -> None:
    """What was broken and mended in it counts for nothing; what it began with, or what outlasts it, does."""
    node = Ward(gpus=4, ports=0)

    def in_maintenance(*, raised: bool, cleared: bool) -> None:
        repaired(node, 2, Clearance.RESET)
        *older, begun, ended = node.transitions
        transitions = (*older, begun._replace(muted=raised), ended._replace(muted=cleared))
        node.report = replace(node.report, health=replace(node.report.health, history=transitions))
        node.go_on(DAY, every=HOUR)

    for _ in range(4):
        in_maintenance(raised=True, cleared=True)
    in_maintenance(raised=False, cleared=True)
    in_maintenance(raised=True, cleared=False)
    assert not node.verdicts
    in_maintenance(raised=False, cleared=True)
    assert node.verdict("node_repeat_offender")


def test_what_was_mended_in_maintenance_and_proved_well_after_it_is_no_repair() -> None:
    """The work was done there; that a GPU proves its health takes ten minutes after a reboot."""
    node = Ward(gpus=4, ports=0)
    for number in range(3):
        node.maintain(HOUR)
        node.event(2, 95)
        node.go_on(60)
        node.reboot(f"boot-{number + 2}")
        node.go_on(60)
        node.end_maintenance()
        node.go_on(HOUR, every=MINUTE).go_on(DAY - HOUR, every=HOUR)
        ended = node.transitions[-1]
        assert (ended.change, ended.cleared_by, ended.muted) == (VerdictChange.CLEARED, Clearance.REBOOT, False)
    assert not node.verdicts
    assert not list(repairs(facts(node.report, node.moment, node.terms), within=30 * DAY))


def test_a_node_that_is_repaired_again_and_again_is_to_be_inspected() -> None:
    """Five repairs in seven days; what ends together is one, as are all that a reboot has cured."""
    node = Ward(gpus=8, ports=0)
    for index in range(8):
        repaired(node, index, Clearance.REBOOT)
    for check in ("gpu_xid_critical", "gpu_lost", "gpu_stuck"):
        repaired(node, 1, Clearance.RESET, check=check)
        node.go_on(60)
    for index in range(2, 4):
        repaired(node, index, Clearance.RESET, level=WARN)
        repaired(node, index, Clearance.QUIET)
        repaired(node, index, Clearance.RESET)
    assert not node.go_on(DAY, every=3600).verdicts
    repaired(node, 6, Clearance.ACKNOWLEDGED)
    verdict = node.go_on().verdict("node_repeat_offender")
    assert verdict is not None
    assert verdict.action is Action.INSPECT
    assert "5 times in 7 days" in verdict.reason


def test_the_score_falls_with_what_went_wrong_and_recovers_in_a_month() -> None:
    """What is there weighs whole; information, maintenance and what follows from something else weigh nothing."""
    ward = Ward(gpus=4, ports=0)
    assert ward.go_on().report.health.score == 100.0
    ward.event(1, 95)
    assert ward.go_on(10, every=5).report.health.score == 80.0
    ward.go_on(10 * DAY, every=HOUR * 6)
    assert ward.report.health.score == 80.0
    ward.reset(1)
    ward.go_on(120)
    assert ward.report.health.score == pytest.approx(80 + 20 * 10 / 30, abs=0.2)
    ward.go_on(21 * DAY, every=HOUR * 6)
    assert ward.report.health.score == 100.0

    muted = [transition._replace(muted=True) for transition in ward.transitions]
    ward.report = replace(ward.report, health=replace(ward.report.health, history=tuple(muted)))
    assert ward.go_on().report.health.score == 100.0


def test_what_outlasts_a_maintenance_costs_from_then_on() -> None:
    """A node that is unfit for work has no full score, whenever that began."""
    ward = Ward(gpus=4, ports=0)
    ward.maintain(HOUR)
    ward.event(1, 95)
    assert ward.go_on(60).report.health.score == 100.0
    assert ward.level("gpu_xid_critical", 1) is FAIL
    ward.end_maintenance()
    assert ward.go_on().report.health.score == 80.0


def test_a_verdict_that_flaps_costs_once_a_day_and_hides_nothing() -> None:
    """Thousands of changes of one verdict drive out none of those that the ladder and the counting rest on."""
    ward = Ward(gpus=4, ports=0)
    repaired(ward, 2, Clearance.RESET)
    for _ in range(1500):
        repaired(ward, 1, Clearance.RECOVERED, level=WARN, check="gpumon_poll_slow")
    assert len(ward.transitions) < 600
    assert any(transition.cleared_by is Clearance.RESET for transition in ward.transitions)
    score = ward.go_on().report.health.score
    assert score == 76.0
    ward.event(2, 95)
    again = ward.go_on().verdict("gpu_xid_critical", 2)
    assert again is not None
    assert again.action is Action.REBOOT
