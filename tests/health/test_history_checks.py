"""The node's own history: reboots, restarts of the agent, repairs that do not last, and the score."""

from __future__ import annotations

from dataclasses import replace

import pytest
from changed_report import changed, with_transitions
from judging import Ward

from gpumon.health.check_row import DAY, HOUR, MINUTE
from gpumon.health.checks.history import repairs
from gpumon.health.verdict import FAIL, WARN, Action, Clearance, Level, Verdict, VerdictChange, VerdictTransition
from gpumon.model.instant import Instant
from gpumon.model.records import AgentRun
from gpumon.state.health_section import facts


class NodeWithLives(Ward):
    """With lives of the agent."""

    def __init__(self) -> None:
        super().__init__(gpus=4, ports=0)
        self.live()

    def live(self, version: str = "1.0") -> None:
        """The agent starts."""
        agent_run = AgentRun(began=Instant(self.report.boot_id, self.at, self.wall), version=version, last=self.wall)
        self.report = changed(self.report, agent_runs=(*self.report.agent.runs, agent_run))

    def end(self, *, stopped: bool = False, planned: bool = False) -> None:
        """End the current run of the agent."""
        *former, last = self.report.agent.runs
        last = replace(last, last=self.wall, stopped=self.wall if stopped else None, planned=planned)
        self.report = changed(self.report, agent_runs=(*former, last))

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


def test_an_unexpected_reboot_is_a_warning_for_a_day() -> None:
    """The warning survives restarts and clock steps, and is not raised again after a day."""
    node = NodeWithLives()
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
def test_the_reason_of_an_unexpected_reboot_has_the_downtime(down: float, words: str) -> None:
    """The downtime is shown also for a quick reset, and is unknown if the clock was set back."""
    node = NodeWithLives()
    node.go_on(60)
    node.boot(down=down)
    verdict = node.verdict("node_unexpected_reboot")
    assert verdict is not None
    assert verdict.reason.endswith(words)
    assert verdict.evidence == ({"down_seconds": pytest.approx(down)} if down > 0 else {})


@pytest.mark.parametrize("how", [{"stopped": True}, {"planned": True}])
def test_a_planned_reboot_raises_no_verdict(how: dict[str, bool]) -> None:
    """A reboot after an orderly stop of the agent, or in maintenance, raises no verdict."""
    node = NodeWithLives()
    node.go_on(60)
    node.boot(**how)
    assert not node.go_on(HOUR, every=60).verdicts


def test_three_crashes_of_the_agent_are_a_warning() -> None:
    """Three crashes within ten minutes raise a warning, which clears after an hour."""
    node = NodeWithLives()
    for _ in range(2):
        node.crash()
        assert not node.verdicts
    node.crash()
    assert node.level("gpumon_restarting") is Level.WARN
    node.go_on(70 * MINUTE, every=60)
    assert not node.verdicts


def test_upgrades_and_orderly_restarts_are_not_crashes() -> None:
    """An orderly stop, or a start with another version, does not count as a crash."""
    node = NodeWithLives()
    for number in range(6):
        node.crash(stopped=True)
        node.crash(version=f"1.{number + 1}")
    for _ in range(4):
        node.crash(stopped=True)
        node.go_on(11 * MINUTE, every=30)
        node.crash()
    assert not node.verdicts


def record_repair(
    ward: Ward, index: int | None, cleared_by: Clearance, *, level: Level = FAIL, check: str = "gpu_xid_critical"
) -> None:
    """Record a verdict that was raised and then cleared in this way."""
    one = Verdict(
        check=check,
        device="" if index is None else ward.report.gpus[index].uuid,
        level=level,
        reason="It was broken.",
        action=Action.RESET,
        raised=Instant("", 0.0, ward.wall),
        last_active=Instant(ward.report.boot_id, ward.at, ward.wall),
    )
    raised = VerdictTransition(
        verdict=one, change=VerdictChange.RAISED, time=Instant(ward.report.boot_id, ward.at, ward.wall)
    )
    cleared = raised._replace(change=VerdictChange.CLEARED, cleared_by=cleared_by)
    ward.report = with_transitions(ward.report, (raised, cleared))


def test_a_gpu_repaired_three_times_is_to_be_replaced() -> None:
    """Three repairs within 30 days ask for a replacement, until an operator clears the verdict."""
    node = Ward(gpus=4, ports=0)
    for _ in range(2):
        record_repair(node, 2, Clearance.RESET)
        node.go_on(5 * DAY, every=HOUR * 6)
    assert not node.verdicts
    record_repair(node, 2, Clearance.REBOOT)
    verdict = node.go_on().verdict("node_repeat_offender")
    assert verdict is not None
    assert (verdict.level, verdict.action) == (WARN, Action.REPLACE)
    assert verdict.reason == "GPU 2 had to be repaired 3 times in 30 days (2 x reset, 1 x reboot)."
    node.reboot()
    node.go_on(3600, every=60)
    assert node.verdict("node_repeat_offender"), "a reboot does not make it forgotten"
    record_repair(node, None, Clearance.OPERATOR, level=WARN, check="node_repeat_offender")
    assert not node.go_on(3600, every=60).verdicts


@pytest.mark.parametrize("cleared_by", [Clearance.REBOOT, Clearance.RESET])
def test_gpus_repaired_together_ask_for_an_inspection(cleared_by: Clearance) -> None:
    """GPUs that are record_repair together each time are inspected, not replaced, because they share a cause."""
    node = Ward(gpus=4, ports=0)
    for number in range(3):
        for index in (1, 2):
            record_repair(node, index, cleared_by)
        if number == 1:
            record_repair(node, 3, cleared_by)
        node.go_on(DAY * 3, every=HOUR * 6)
        node.reboot(f"boot-{number + 2}")
        node.go_on(3600, every=60)
    verdict = node.verdict("node_repeat_offender")
    assert verdict is not None
    assert verdict.action is Action.INSPECT
    assert verdict.reason == f"GPUs 1, 2 had to be repaired together 3 times in 30 days (3 x {cleared_by})."
    record_repair(node, 2, Clearance.RESET)
    verdict = node.go_on(DAY, every=HOUR).verdict("node_repeat_offender")
    assert verdict is not None
    assert verdict.action is Action.INSPECT, "the first that has as many, and had them together with another"


def test_faults_raised_and_cleared_in_maintenance_are_no_repair() -> None:
    node = Ward(gpus=4, ports=0)

    def in_maintenance(*, raised: bool, cleared: bool) -> None:
        record_repair(node, 2, Clearance.RESET)
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


def test_a_reboot_in_maintenance_is_no_repair_if_the_verdict_clears_later() -> None:
    node = Ward(gpus=4, ports=0)
    for number in range(3):
        node.maintain(HOUR)
        node.event(2, 95)
        node.go_on(60)
        node.reboot(f"boot-{number + 2}")
        node.go_on(60)
        node.end_windows()
        node.go_on(HOUR, every=MINUTE).go_on(DAY - HOUR, every=HOUR)
        ended = node.transitions[-1]
        assert (ended.change, ended.cleared_by, ended.muted) == (VerdictChange.CLEARED, Clearance.REBOOT, False)
    assert not node.verdicts
    assert not list(repairs(facts(node.report, node.moment, node.terms), within=30 * DAY))


def test_five_repairs_of_a_node_ask_for_an_inspection() -> None:
    """Five repairs within seven days ask for an inspection; verdicts that clear together count once."""
    node = Ward(gpus=8, ports=0)
    for index in range(8):
        record_repair(node, index, Clearance.REBOOT)
    for check in ("gpu_xid_critical", "gpu_lost", "gpu_stuck"):
        record_repair(node, 1, Clearance.RESET, check=check)
        node.go_on(60)
    for index in range(2, 4):
        record_repair(node, index, Clearance.RESET, level=WARN)
        record_repair(node, index, Clearance.QUIET)
        record_repair(node, index, Clearance.RESET)
    assert not node.go_on(DAY, every=3600).verdicts
    record_repair(node, 6, Clearance.OPERATOR)
    verdict = node.go_on().verdict("node_repeat_offender")
    assert verdict is not None
    assert verdict.action is Action.INSPECT
    assert "5 times in 7 days" in verdict.reason


def test_the_score_falls_with_a_failure_and_recovers_in_a_month() -> None:
    """An open failure has full weight, a cleared one loses weight for 30 days, and a muted one has none."""
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


def test_a_failure_that_outlasts_maintenance_lowers_the_score() -> None:
    ward = Ward(gpus=4, ports=0)
    ward.maintain(HOUR)
    ward.event(1, 95)
    assert ward.go_on(60).report.health.score == 100.0
    assert ward.level("gpu_xid_critical", 1) is FAIL
    ward.end_windows()
    assert ward.go_on().report.health.score == 80.0


def test_a_flapping_verdict_lowers_the_score_once_a_day() -> None:
    """Thousands of changes of one verdict do not displace the history of other verdicts."""
    ward = Ward(gpus=4, ports=0)
    record_repair(ward, 2, Clearance.RESET)
    for _ in range(1500):
        record_repair(ward, 1, Clearance.RECOVERED, level=WARN, check="gpumon_poll_slow")
    assert len(ward.transitions) < 600
    assert any(transition.cleared_by is Clearance.RESET for transition in ward.transitions)
    score = ward.go_on().report.health.score
    assert score == 76.0
    ward.event(2, 95)
    again = ward.go_on().verdict("gpu_xid_critical", 2)
    assert again is not None
    assert again.action is Action.REBOOT
