"""Alerts of verdicts, and the texts about their actions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from changed_report import changed
from each_case import each_case
from gpumon_sim.faults.row import FaultRow
from judging import Ward

from benchmarks.truth.rows import MEASURED_FAULTS
from gpumon.health.alert import FIRING, PENDING, RESOLVED, Alert, alerts_of
from gpumon.health.alert_texts import alert_texts
from gpumon.health.catalogue import SHIPPED
from gpumon.health.check_row import HOUR, MINUTE, Check
from gpumon.health.checks import gpu
from gpumon.health.table import BY_NAME, CHECKS
from gpumon.health.verdict import ACTIONS, NODE, Action, Level, Verdict
from gpumon.health.xid_texts import RECOVERY
from gpumon.health.xids import RESET, TABLE, XIDS
from gpumon.model.instant import Instant, Now
from gpumon.model.node import VerdictInfo
from gpumon.outputs.problems import problems
from gpumon.outputs.responses.health import VerdictResponse
from gpumon.state.sections import tables


def labels_of_rule(name: str) -> Iterable[tuple[str, str]]:
    """Return the labels that the alert's rule adds."""
    return next(rule for rule in alert_texts() if rule.name == name).labels.items()


class Alerts:
    """The alerts of a ward."""

    def __init__(self, ward: Ward) -> None:
        self.ward = ward

    def go_on(self, seconds: float = 0.0, every: float = 15.0) -> Alerts:
        for _ in range(max(1, round(seconds / every))):
            self.ward.go_on(every)
        return self

    def states(self) -> dict[str, str]:
        return {alert.rule: alert.state for alert in self.ward.report.alerts}

    def alert(self, rule: str) -> Alert:
        (alert,) = (alert for alert in self.ward.report.alerts if alert.rule == rule)
        return alert


def hot() -> Alerts:
    """Return a node whose GPU 1 has no thermal margin left."""
    ward = Ward(gpus=2, ports=0)
    ward.gpu(1, thermal_margin_celsius=-1.0)
    return Alerts(ward)


def test_an_alert_is_pending_while_its_check_waits_then_fires_then_is_resolved() -> None:
    """It has the verdict's labels and reason, and is shown for a while after it has resolved."""
    alerts = hot().go_on(MINUTE)
    rule = "GpuThermalMarginLowWarning"
    assert alerts.states() == {rule: PENDING}
    alerts.go_on(3 * MINUTE)
    firing = alerts.alert(rule)
    uuid = alerts.ward.report.gpus[1].uuid
    assert firing.state == FIRING
    assert firing.labels == (("check", "gpu_thermal_margin_low"), ("gpu", "1"), ("uuid", uuid))
    assert firing.identity == tuple(sorted((*firing.labels, ("alertname", rule), *labels_of_rule(rule))))
    assert "1 degree above its limit" in firing.description
    assert firing.summary == "GPU 1: The GPU is near or above the temperature at which its clocks are reduced."
    alerts.ward.gpu(1, thermal_margin_celsius=20.0)
    alerts.go_on(11 * MINUTE)
    resolved = alerts.alert(rule)
    assert (resolved.state, resolved.firing_since) == (RESOLVED, firing.firing_since)
    assert resolved.resolved_at is not None
    assert not alerts.go_on(20 * MINUTE).states()


def test_the_alert_of_a_lost_gpu_names_the_xid_that_it_explains() -> None:
    """The verdict has no error code, but the Xid that it inhibits on its GPU has. Other GPUs' do not count."""
    ward = Ward(gpus=2, ports=0)
    ward.event(0, 63)
    ward.event(1, 79)
    ward.fault(1, "lost")
    firing = Alerts(ward).go_on(MINUTE).alert("GpuLost")
    assert firing.summary == "GPU 1: The GPU fell off the bus. Xid 79: The GPU has fallen off the bus."
    assert firing.description.startswith("It fell off the bus")
    assert "Xid 79: The GPU has fallen off the bus." in firing.description


def test_the_title_of_a_critical_xid_names_its_cause() -> None:
    """A telephone shows only the title."""
    ward = Ward(gpus=2, ports=0)
    ward.event(1, 48)
    firing = Alerts(ward).go_on(MINUTE).alert("GpuXidCritical")
    assert firing.summary == "GPU 1: A critical Xid occurred. Xid 48: Uncorrectable (double bit) ECC error."


def test_a_worse_level_is_another_alert() -> None:
    """The warning resolves when the failure fires, which is when the level changed."""
    alerts = hot().go_on(4 * MINUTE)
    alerts.ward.gpu(1, thermal_margin_celsius=-1.0, clock_event_active={"hw_thermal": 1.0})
    alerts.go_on(3 * MINUTE)
    states = alerts.states()
    assert states["GpuThermalMarginLow"] == FIRING
    assert states["GpuThermalMarginLowWarning"] == RESOLVED
    failing = alerts.alert("GpuThermalMarginLow").firing_since
    assert failing == alerts.alert("GpuThermalMarginLowWarning").resolved_at


def test_maintenance_mutes_what_pages() -> None:
    """The alert of an open verdict is not shown in a maintenance, and has the same start after it."""
    alerts = hot().go_on(4 * MINUTE)
    fired = alerts.alert("GpuThermalMarginLowWarning")
    alerts.ward.maintain(HOUR)
    assert alerts.go_on().states() == {}
    assert alerts.ward.verdict("gpu_thermal_margin_low", 1)
    alerts.ward.end_windows()
    assert alerts.go_on().alert(fired.rule).firing_since == fired.firing_since


def verdict(check: str, level: Level, device: str, ward: Ward, **changes: object) -> Verdict:
    now = Instant(ward.report.boot_id, ward.at, ward.wall)
    row = Verdict(
        check=check,
        device=device,
        level=level,
        reason="It was busy 2% of the time.",
        action=Action.NONE,
        raised=now,
        last_active=now,
    )
    return row._replace(**changes)  # type: ignore[arg-type]


def alert_states(*verdicts: Verdict, ward: Ward, after: float = 0.0, maintenance: bool = False) -> dict[str, str]:
    """Return the states of alerts for these verdicts, so many seconds after they were raised."""
    evaluated = Now(at=ward.at + after, wall=0.0, uptime=0.0)
    health = replace(ward.report.health, open={each.key: each for each in verdicts}, evaluated=evaluated)
    alerts = alerts_of(health, ward.report.gpus, boot_id=ward.report.boot_id, in_maintenance=maintenance)
    return {alert.rule: alert.state for alert in alerts}


def test_alerts_survive_a_restart_of_the_agent() -> None:
    """They depend on stored verdicts and transitions only, also those that were resolved."""
    alerts = hot().go_on(4 * MINUTE)
    before = alerts.ward.report.alerts
    alerts.ward.restart()
    assert alerts.ward.report.alerts == before
    alerts.ward.gpu(1, thermal_margin_celsius=20.0)
    assert set(alerts.go_on(11 * MINUTE).states().values()) == {RESOLVED}
    alerts.ward.restart()
    assert set(alerts.go_on().states().values()) == {RESOLVED}


def test_information_is_not_muted_by_maintenance() -> None:
    ward = Ward(gpus=2)
    row = verdict("gpu_idle", Level.WARN, ward.report.gpus[1].uuid, ward)
    assert alert_states(row, ward=ward, maintenance=True) == {"GpuIdle": FIRING}


def test_unknown_fires_after_ten_minutes() -> None:
    """A check that has returned unknown for 10 minutes is an alert of its own."""
    ward = Ward(gpus=2)
    row = verdict("gpu_denied", Level.UNKNOWN, ward.report.gpus[1].uuid, ward)
    assert alert_states(row, ward=ward) == {"GpumonCheckUnknown": PENDING}
    assert alert_states(row, ward=ward, after=10 * MINUTE) == {"GpumonCheckUnknown": FIRING}


def test_an_inhibited_verdict_is_no_alert() -> None:
    ward = Ward(gpus=2)
    cause = verdict("allreduce_failing", Level.FAIL, NODE, ward)
    inhibited = verdict("gpu_idle", Level.WARN, ward.report.gpus[1].uuid, ward, inhibited_by=cause.key)
    assert alert_states(cause, inhibited, ward=ward) == {"AllReduceFailing": FIRING}


def test_the_operators_own_action_for_an_xid_is_in_the_verdict_and_on_the_page() -> None:
    """A text of xids.file replaces "inspect the hardware" in alerts, and in the API, from which status prints."""
    ward = Ward(gpus=2, ports=0)
    row = replace(XIDS[79], action="page the hardware team", ordered=frozenset({"action"}))
    ward.report = changed(ward.report, catalogue=SHIPPED.with_rows({79: row}))
    ward.event(1, 79)
    alerts = Alerts(ward).go_on(30)
    verdict = ward.verdict("gpu_xid_critical", 1)
    assert verdict is not None
    assert (verdict.action, verdict.action_text) == (Action.INSPECT, "page the hardware team")
    assert VerdictResponse.from_verdict(verdict, ward.report).action_text == "page the hardware team"
    assert alerts.alert("GpuXidCritical").action.startswith("Page the hardware team. ")


def test_the_operators_own_action_for_an_inhibited_xid_follows_that_of_its_cause() -> None:
    """The alert, status, API and metrics of a lost GPU show both actions."""
    ward = Ward(gpus=2, ports=0)
    row = replace(XIDS[79], action="page the hardware team", ordered=frozenset({"action"}))
    ward.report = changed(ward.report, catalogue=SHIPPED.with_rows({79: row}))
    ward.event(1, 79)
    ward.fault(1, "lost")
    alerts = Alerts(ward).go_on(30)
    actions = "drain the node and reboot it; page the hardware team"
    (verdict,) = ward.report.health.primary
    assert verdict.check == "gpu_lost"
    assert VerdictResponse.from_verdict(verdict, ward.report).action_text == actions
    assert alerts.alert("GpuLost").action.startswith(f"{actions.capitalize()}. ")
    assert problems(ward.report)[0].action.startswith(f"{actions.capitalize()}.")
    (info,) = (info for info, _ in tables(ward.report) if isinstance(info, VerdictInfo))
    assert info.action_text == f"{actions.capitalize()}."


def test_a_shipped_action_in_the_operators_row_has_the_text_of_the_verdicts_action() -> None:
    ward = Ward(gpus=2, ports=0)
    row = replace(XIDS[79], action=RESET, ordered=frozenset({"action"}))
    ward.report = changed(ward.report, catalogue=SHIPPED.with_rows({79: row}))
    ward.event(1, 79)
    verdict = ward.go_on(30).verdict("gpu_xid_critical", 1)
    assert verdict is not None
    assert (verdict.action, verdict.action_text) == (Action.RESET, "drain the node and reset the GPU")


REPAIR = re.compile(r"\b(re-?set|reboot|power-cycle|replace|restart)\b(?! shutdown)", re.IGNORECASE)
CONDITION = re.compile(r"\bif\b|^after\b|^do not\b|\ba restart\b", re.IGNORECASE)
WORDS = {Action.RESTART: "restart", Action.RESET: "reset", Action.REBOOT: "reboot", Action.REPLACE: "replace"}
OF_VERDICT = "action of the verdict"
"""Words of a runbook whose verdicts have different actions."""


@each_case("check", CHECKS, ids=[check.name for check in CHECKS])
def test_first_step_names_no_second_repair(check: Check) -> None:
    """After "Do:" the action of the verdict comes first; the advice names another repair only with a condition."""
    for sentence in re.split(r"(?<=[.;:]) ", check.advice):
        assert not REPAIR.search(sentence) or CONDITION.search(sentence), sentence


@each_case("fault", MEASURED_FAULTS, ids=[fault.name for fault in MEASURED_FAULTS])
def test_runbook_names_the_action_of_its_verdict(fault: FaultRow) -> None:
    steps = BY_NAME[fault.check].steps.lower()
    assert fault.action not in WORDS or WORDS[fault.action] in steps or OF_VERDICT in steps


DISRUPTION = re.compile(r"(?:^|[.:;,] |then |and |\d\. |the GPU or )(?:reset|reboot|power-cycle)\b", re.IGNORECASE)
FREE = re.compile(r"drain|until the GPU is idle|stop the jobs", re.IGNORECASE)


def test_every_text_drains_before_it_resets_or_reboots() -> None:
    """Actions of verdicts, faults and Xids, and each runbook, name the drain first."""
    texts = [
        *ACTIONS.values(),
        *(advice.action for advice in gpu.FAULTS.values()),
        *(recovery.next_step for recovery in RECOVERY.values()),
        *(text for xid in TABLE for text in (xid.action, xid.if_it_recurs)),
        *(check.steps for check in CHECKS),
    ]
    idle = "reset the GPU when it is idle"
    repairs = [(text, match.start()) for text in texts if idle not in text and (match := DISRUPTION.search(text))]
    assert len(repairs) > 40
    assert [text for text, at in repairs if not (free := FREE.search(text)) or free.start() > at] == []
