"""The alert rules, evaluated by Prometheus itself (promtool): each kind of rule through its life."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from each_case import each_case
from promtool_run import Series, Values, check, group, pack_groups
from recorded_scrape import TARGET, recorded_samples

from gpumon.fleet.alert_rules import AlertRule, render, rules
from gpumon.fleet.recording_rules import LAST_SEEN, LAST_VERDICT, MAINTENANCE_END, VERDICT
from gpumon.health.alert_texts import CHECK_UNKNOWN, PAGING, WARNING, alert_names
from gpumon.health.check_row import Check, Paging, alert_name, split_action
from gpumon.health.checks.gpu import FAULTS
from gpumon.health.table import BY_NAME, CHECKS, SUBJECTS
from gpumon.health.verdict import FAIL, OK, UNKNOWN, WARN, Level
from gpumon.model.reading import Labels
from scripts.docs.alerts_page import alerts_page

ROOT = Path(__file__).parents[2]
RULES = {rule.name: rule for rule in rules()}
MINUTES = 40
START, END = 10, 30
"""Minutes in which a case is active."""
AWAY, BACK = 20, 25
"""Minutes in which the agent cannot be scraped, in the tests of that."""
INSTANCE = dict(TARGET)["instance"]
HOST = INSTANCE.partition(":")[0]
GPU = (("gpu", "3"), ("uuid", "GPU-3"))
PORT = (("device", "mlx5_3"), ("port", "1"))
JOB = (("job_id", "slurm/4711"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleCase:
    """A rule that fires from minute `firing` until minute END for one series."""

    rule: str
    metric: str
    labels: Labels
    values: Values
    firing: int = START

    @property
    def series(self) -> Series:
        return Series(self.metric, (*self.labels, *TARGET), self.values)


def of_check(check: Check, level: Level, rule: str, firing: int = START) -> RuleCase:
    """Return a case in which the check has another level, then this one, then none."""
    device = {"gpu": GPU, "port": PORT, "job": JOB, "node": ()}[check.kind]
    other = WARN if level is FAIL else FAIL
    values = [
        float(other) if 5 <= minute < START else float(level) if START <= minute < END else None
        for minute in range(MINUTES)
    ]
    return RuleCase(rule=rule, metric=VERDICT, labels=(("check", check.name), *device), values=values, firing=firing)


def kinds() -> list[RuleCase]:
    """Return one case for each kind of rule: what the check judges, and severity."""
    found: dict[tuple[str, str], RuleCase] = {}
    for row in CHECKS:
        for name, (level, severity) in zip(alert_names(row), sorted(row.severities, reverse=True), strict=True):
            found.setdefault((row.kind, severity), of_check(row, level, name))
    return [case for (kind, _), case in found.items() if kind != "job"]


CASES = (
    *kinds(),
    of_check(BY_NAME["gpu_denied"], UNKNOWN, CHECK_UNKNOWN.name, START + 10),
    RuleCase(
        rule="GpumonDown",
        metric="up",
        labels=(),
        values=[float(not START <= minute < END) for minute in range(MINUTES)],
        firing=START + 7,
    ),
    RuleCase(
        rule="GpumonStale",
        metric="gpumon_snapshot_timestamp_seconds",
        labels=(),
        # The clock of promtool begins at 0.
        values=[60.0 * (START if START <= minute < END else minute) for minute in range(MINUTES)],
        firing=START + 3,
    ),
)


def texts(rule: AlertRule, labels: Labels, value: str = "", info: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the annotations as Prometheus fills them in. `info`: labels of the verdict's info series, if it exists."""
    text = {"summary": f"{HOST}: {rule.summary}", "description": rule.description}
    for name, content in labels:
        text = {key: words.replace(f"{{{name}}}", content) for key, words in text.items()}
    text = {key: words.replace('{{ printf "%.0f" $value }}', value) for key, words in text.items()}
    text["action"] = rule.first_step if rule.check is not None else " ".join(rule.steps.split())
    if rule.name == "GpumonDown":  # an agent that answers would serve it, and none does
        text["runbook_url"] = ""
    else:
        text["runbook_url"] = f"http://{INSTANCE}/runbooks/{rule.section}"
    if info is not None:
        code = f" {info['code']}." if info["code"] else ""
        action = f"{info['action_text']} {split_action(rule.first_step)[1]}"
        text |= {"summary": text["summary"] + code, "description": info["reason"], "action": action}
    if rule.check is not None and rule.check.kind == "gpu":
        text["serial"] = info["serial"] if info is not None else ""
    return text


def expected_alerts(case: RuleCase, minute: int, *, fires: bool) -> dict[str, Any]:
    rule = RULES[case.rule]
    alert = {
        "exp_labels": {**dict((*case.labels, *TARGET)), **rule.labels},
        "exp_annotations": texts(rule, case.labels, f"{60 * (minute - START)}"),
    }
    return {"eval_time": f"{minute}m", "alertname": case.rule, "exp_alerts": [alert] if fires else []}


def test_each_kind_of_rule_fires_and_resolves(tmp_path: Path) -> None:
    """A rule is quiet at another level, fires with labels and texts, and resolves when the series ends."""
    groups = [
        group(
            60,
            [case.series, Series(MAINTENANCE_END, TARGET, [0.0] * MINUTES)],
            alert_rule_test=[
                expected_alerts(case, START - 1, fires=False),
                expected_alerts(case, case.firing, fires=True),
                expected_alerts(case, END + 1, fires=False),
            ],
        )
        for case in CASES
    ]
    check(tmp_path, render(RULES.values()), groups)


INFO = {
    "action": "reboot",
    "action_text": "Drain the node and reboot it.",
    "code": "Xid 79",
    "reason": "Xid 79: it fell off the bus.",
    "serial": "1650",
}
TEXTS = ("action", "action_text", "code", "reason")
"""Labels of the info series that have texts."""


def test_a_page_says_what_happened_and_what_to_do(tmp_path: Path) -> None:
    """Reason, Xid, action and serial number are in the annotations, also when the agent can no longer be scraped."""
    check_case = of_check(BY_NAME["gpu_lost"], FAIL, "GpuLost")
    values = [value if minute < AWAY else None for minute, value in enumerate(check_case.values)]
    known: Values = [1.0 if value == FAIL else None for value in values]
    labels = (*check_case.labels, *((name, INFO[name]) for name in TEXTS), *TARGET)
    series = [
        Series(check_case.metric, check_case.series.labels, values),
        Series(f"{VERDICT}_info", labels, known),
        Series("gpumon_gpu_info", (*GPU, ("serial", INFO["serial"]), *TARGET), [1.0] * AWAY),
        Series(MAINTENANCE_END, TARGET, [0.0 if minute < AWAY else None for minute in range(MINUTES)]),
    ]
    rule = RULES["GpuLost"]
    alert = {
        "exp_labels": {**dict((*check_case.labels, *TARGET)), **rule.labels},
        "exp_annotations": texts(rule, check_case.labels, info=INFO),
    }
    tests = [{"eval_time": f"{at}m", "alertname": "GpuLost", "exp_alerts": [alert]} for at in (START, AWAY + 15)]
    check(tmp_path, render(RULES.values()), [group(60, series, alert_rule_test=tests)])


def test_a_job_that_stalls_on_several_nodes_is_one_alert(tmp_path: Path) -> None:
    """It names the nodes of the job that are not in maintenance, first the one whose GPUs stopped first."""
    labels, series = (("check", "job_stalled"), *JOB), list[Series]()
    for node, moved in (("n1:17400", 300.0), ("n2:17400", 200.0), ("n3:17400", 100.0)):
        target = (("instance", node), *(pair for pair in TARGET if pair[0] != "instance"))
        series += [
            Series(VERDICT, (*labels, *target), [float(WARN)] * MINUTES),
            Series("gpumon_job_last_moving_timestamp_seconds", (*JOB, *target), [moved] * MINUTES),
            Series(MAINTENANCE_END, target, [0.0 if node != "n3:17400" else 1e9] * MINUTES),
        ]
    rule = RULES["JobStalled"]
    alert = {
        "exp_labels": {**dict(labels), "job": dict(TARGET)["job"], **rule.labels},
        "exp_annotations": {
            "summary": "Job slurm/4711: The GPUs of the job do not move any more, first on n2:17400.",
            "description": "The GPUs of the job do not move any more: check job_stalled has returned a warning. "
            "`gpumon status` on the node shows why. n2:17400 n1:17400",
            "action": rule.first_step.replace("{job_id}", "slurm/4711"),
            "runbook_url": "",
        },
    }
    assert rule.first_step.startswith("`gpumon explain {job_id}`")
    tests = [{"eval_time": "20m", "alertname": "JobStalled", "exp_alerts": [alert]}]
    check(tmp_path, render(RULES.values()), [group(60, series, alert_rule_test=tests)])


def test_a_job_that_waits_for_a_node_that_is_active_is_not_stalled(tmp_path: Path) -> None:
    """One rank saves or evaluates there. After 20 minutes without motion on any node, a rank may loop on its CPU."""
    series, moved = list[Series](), ("gpumon_job_last_moving_timestamp_seconds", 300.0)
    for node, active in (("n1:17400", 0.0), ("n2:17400", 1.0)):
        target = (*JOB, ("instance", node), *(pair for pair in TARGET if pair[0] != "instance"))
        series += [
            Series(VERDICT, (("check", "job_stalled"), *target), [float(WARN if active == 0 else OK)] * MINUTES),
            Series("gpumon_job_active", target, [active] * MINUTES),
            Series(moved[0], target, [moved[1]] * MINUTES),
        ]
    count = 'count(ALERTS{alertname="JobStalled", alertstate="firing"})'
    tests = [
        {"expr": count, "eval_time": f"{at}m", "exp_samples": [{"labels": "{}", "value": 1}] if stalled else []}
        for at, stalled in ((10, False), (24, False), (26, True))
    ]
    check(tmp_path, render(RULES.values()), [group(60, series, promql_expr_test=tests)])


def test_units_of_one_name_on_two_nodes_are_different_jobs(tmp_path: Path) -> None:
    """One that works does not hide the other, which is stalled, and two that stall are two alerts."""
    series, job = list[Series](), ("job_id", "unit/vllm.service")
    moved = "gpumon_job_last_moving_timestamp_seconds"
    for node, level in (("n1:17400", WARN), ("n2:17400", WARN), ("n3:17400", OK)):
        target = (job, ("instance", node), *(pair for pair in TARGET if pair[0] != "instance"))
        series += [
            Series(VERDICT, (("check", "job_stalled"), *target), [float(level)] * MINUTES),
            Series("gpumon_job_active", target, [float(level == OK)] * MINUTES),
            Series(moved, target, [60.0 * minute if level == OK else 300.0 for minute in range(MINUTES)]),
        ]
    count = 'count by (instance) (ALERTS{alertname="JobStalled", alertstate="firing"})'
    firing = [{"labels": f'{{instance="{node}:17400"}}', "value": 1} for node in ("n1", "n2")]
    tests = [{"expr": count, "eval_time": "20m", "exp_samples": firing}]
    check(tmp_path, render(RULES.values()), [group(60, series, promql_expr_test=tests)])


def test_nodes_of_two_clusters_with_one_name_are_two_nodes(tmp_path: Path) -> None:
    """The maintenance and the reason of a node are not those of its namesake in another cluster."""
    lost = of_check(BY_NAME["gpu_lost"], FAIL, "GpuLost")
    rule, series, alerts = RULES["GpuLost"], list[Series](), list[dict[str, Any]]()
    maintenance = {"a": 0.0, "b": 0.0, "c": 1e6}
    for cluster, end in maintenance.items():
        target = (("cluster", cluster), *TARGET)
        info = INFO | {"reason": f"It fell off the bus of {cluster}.", "code": f"Xid {cluster}", "serial": ""}
        words = tuple((name, info[name]) for name in TEXTS)
        series += [
            Series(VERDICT, (*lost.labels, *target), lost.values),
            Series(f"{VERDICT}_info", (*lost.labels, *words, *target), [float(value == FAIL) for value in lost.values]),
            Series(MAINTENANCE_END, target, [end] * MINUTES),
        ]
        if end == 0:
            labels = {**dict((*lost.labels, *target)), **rule.labels}
            alerts.append({"exp_labels": labels, "exp_annotations": texts(rule, lost.labels, info=info)})
    tests = [{"eval_time": f"{START}m", "alertname": "GpuLost", "exp_alerts": alerts}]
    check(tmp_path, render(RULES.values()), [group(60, series, alert_rule_test=tests)])


def test_a_new_reason_changes_no_label(tmp_path: Path) -> None:
    """When action and reason change, the alert stays the same and its annotations follow."""
    check_case = of_check(BY_NAME["gpu_lost"], FAIL, "GpuLost")
    changed = INFO | {"action": "replace", "action_text": "Replace the part.", "reason": "It fell off again."}
    changed |= {"code": "", "serial": ""}
    series = [check_case.series, Series(MAINTENANCE_END, TARGET, [0.0] * MINUTES)]
    for info, minutes in ((INFO | {"serial": ""}, range(START, AWAY)), (changed, range(AWAY, END))):
        labels = (*check_case.labels, *((name, info[name]) for name in TEXTS), *TARGET)
        series.append(Series(f"{VERDICT}_info", labels, [1.0 if at in minutes else None for at in range(MINUTES)]))
    rule = RULES["GpuLost"]
    identity = {**dict((*check_case.labels, *TARGET)), **rule.labels}
    tests = [
        {
            "eval_time": f"{at}m",
            "alertname": "GpuLost",
            "exp_alerts": [{"exp_labels": identity, "exp_annotations": texts(rule, check_case.labels, info=info)}],
        }
        for at, info in ((AWAY - 1, INFO | {"serial": ""}), (AWAY + 1, changed))
    ]
    check(tmp_path, render(RULES.values()), [group(60, series, alert_rule_test=tests)])


def test_at_most_fifteen_alerts_page_at_night() -> None:
    """All others are tickets, and nothing of severity info pages."""
    night = [rule.name for rule in rules() if rule.page is Paging.NIGHT]
    assert len(night) <= 15, night
    assert {rule.severity for rule in rules() if rule.page is Paging.NIGHT} == {"critical"}
    assert {rule.page for rule in rules() if rule.severity == "info"} == {Paging.NEVER}


def without_agent(values: Values, *, since: int = AWAY, until: int = BACK) -> Values:
    """Return the values of a series that the agent exports, while it cannot be scraped in these minutes."""
    return [None if since <= minute < until else value for minute, value in enumerate(values)]


def series_with_gap(case: RuleCase, *, away: Values, maintenance: float = 0.0, present: bool = True) -> list[Series]:
    """Return the series of a case whose agent cannot be scraped for a while. `present`: the target is configured."""
    up = [float(value is not None) if present or value is not None else None for value in away]
    ends = [None if value is None else maintenance for value in away]
    values = [None if gone is None else value for gone, value in zip(away, case.values, strict=True)]
    return [
        Series(case.metric, case.series.labels, values),
        Series(MAINTENANCE_END, TARGET, ends),
        Series("up", TARGET, up),
    ]


CHECK_CASES = kinds()
ALWAYS: Values = [1.0] * MINUTES


@pytest.mark.slow
@pytest.mark.parametrize("present", [True, False], ids=["up is 0", "the target is not configured"])
def test_an_alert_survives_an_agent_that_cannot_be_scraped(tmp_path: Path, *, present: bool) -> None:
    """The alert of each kind of check keeps firing with the same labels, and ends when the agent no longer has it."""
    groups = [
        group(
            60,
            series_with_gap(case, away=without_agent(ALWAYS, until=until), present=present),
            alert_rule_test=[
                *[expected_alerts(case, minute, fires=True) for minute in range(START, min(until, END))],
                expected_alerts(case, until, fires=until < END),
                expected_alerts(case, max(until, END), fires=False),
            ],
        )
        for case in CHECK_CASES
        for until in (AWAY + 1, BACK, END + 5)  # restarted, upgraded, and repaired while the host was off
    ]
    check(tmp_path, render(RULES.values()), pack_groups(groups))


def test_a_verdict_that_ended_before_the_agent_does_not_fire_again(tmp_path: Path) -> None:
    """A verdict that was cleared, or whose GPU was removed, while the agent was scraped stays ended without it."""
    groups = [
        group(
            60,
            series_with_gap(case, away=without_agent(ALWAYS, since=END + 1, until=MINUTES)),
            alert_rule_test=[expected_alerts(case, minute, fires=minute < END) for minute in range(END - 1, MINUTES)],
        )
        for case in CHECK_CASES
    ]
    check(tmp_path, render(RULES.values()), pack_groups(groups))


def test_the_verdicts_of_an_agent_that_stays_away_end_after_the_limit(tmp_path: Path) -> None:
    """`--keep-for` ends the alert of a node that was removed, and nothing of it is recorded any more."""
    away = without_agent(ALWAYS, until=MINUTES)
    [case, *_] = CHECK_CASES
    none = [{"expr": f"{LAST_VERDICT} or {LAST_SEEN}", "eval_time": f"{AWAY + 7}m", "exp_samples": []}]
    alerts = [
        expected_alerts(case, AWAY + 3, fires=True),
        *[expected_alerts(case, minute, fires=False) for minute in (26, 39)],
    ]
    only = group(60, series_with_gap(case, away=away, present=False), alert_rule_test=alerts, promql_expr_test=none)
    check(tmp_path, render(RULES.values(), keep_seconds=300), [only])


def test_a_pause_of_prometheus_keeps_the_verdicts(tmp_path: Path) -> None:
    """What Prometheus recorded before a pause that is longer than its lookback of five minutes still counts."""
    case = next(case for case in CHECK_CASES if case.labels[1:])
    series = series_with_gap(case, away=without_agent(ALWAYS, since=START + 1, until=MINUTES))
    alerts = [expected_alerts(case, minute, fires=minute >= START) for minute in (0, 10, 20, 30)]
    check(tmp_path, render(RULES.values()), [group(60, series, alert_rule_test=alerts)], step=600)


def test_maintenance_mutes_the_verdicts_of_an_agent_that_is_stopped(tmp_path: Path) -> None:
    """A maintenance that was declared before the agent was stopped still mutes, GpumonDown too, and ends in time."""
    away = without_agent(ALWAYS, until=END)
    groups = [
        group(
            60,
            series_with_gap(case, away=away, maintenance=1560.0),
            alert_rule_test=[
                expected_alerts(case, BACK, fires=RULES[case.rule].severity not in PAGING),
                expected_alerts(case, BACK + 2, fires=True),
            ],
        )
        for case in CHECK_CASES
    ]
    check(tmp_path, render(RULES.values()), pack_groups(groups))


@pytest.mark.slow
def test_maintenance_mutes_what_pages(tmp_path: Path) -> None:
    """In maintenance only alerts for information fire; all fire again when it ends."""
    ends = Series(MAINTENANCE_END, TARGET, [1500.0] * MINUTES)
    groups = [
        group(
            60,
            [case.series, ends],
            alert_rule_test=[
                expected_alerts(case, 24, fires=RULES[case.rule].severity not in PAGING),
                *([] if RULES[case.rule].for_seconds else [expected_alerts(case, 26, fires=True)]),
            ],
        )
        for case in CASES
    ]
    assert {RULES[case.rule].severity for case in CASES} == {"critical", "warning", "info"}
    check(tmp_path, render(RULES.values()), groups)


@pytest.mark.slow
def test_nothing_fires_on_a_healthy_node_or_during_a_release(tmp_path: Path) -> None:
    """While the driver is released the time of the last poll is absent, which is not a stale agent."""
    absent = range(20, 50)
    names = {"up", "gpumon_snapshot_timestamp_seconds", VERDICT, MAINTENANCE_END}
    series = [
        Series(
            sample.name,
            sample.labels,
            [
                (60.0 * minute if minute not in absent else None) if "snapshot" in sample.name else sample.value
                for minute in range(60)
            ],
        )
        for sample in recorded_samples()
        if sample.name in names
    ]
    quiet = [
        {"expr": 'ALERTS{alertname!="GpumonWatchdog"}', "eval_time": f"{minute}m", "exp_samples": []}
        for minute in range(0, 60, 5)
    ]
    check(tmp_path, render(RULES.values()), [group(60, series, promql_expr_test=quiet)])


def test_every_check_has_a_rule_for_each_severity() -> None:
    """The rule reads the check's verdict, has its name in CamelCase and its runbook section."""
    entries = yaml.safe_load(render(RULES.values()))["groups"][1]["rules"]
    written = {entry["alert"]: entry for entry in entries if "alert" in entry}
    areas = {row.name: subject.area for subject in SUBJECTS for row in subject.checks}
    wrong = []
    for row in CHECKS:
        for name, (level, severity) in zip(alert_names(row), sorted(row.severities, reverse=True), strict=True):
            entry = written[name]
            good = (
                name.removesuffix(WARNING) == alert_name(row.name)
                and re.search(f'{LAST_VERDICT}{{check="{row.name}"[^}}]*}} == {level:d}', entry["expr"])
                and entry["labels"] == {"severity": severity, "page": row.paging(level), "class": areas[row.name]}
                and f"/runbooks/{alert_name(row.name)}" in entry["annotations"]["runbook_url"]
                and ("unless" in entry["expr"]) == (severity in PAGING)
            )
            wrong += [] if good else [name]
    assert wrong == []
    assert alert_name("nvlink_slow") == "NvlinkSlow"
    assert alert_name("gpu_allreduce_slow") == "GpuAllReduceSlow"


def test_names_are_unique() -> None:
    """No two rules have one name, and no two checks."""
    assert len(RULES) == len(rules())
    assert len({row.alert for row in CHECKS}) == len(CHECKS)


def test_an_operator_can_read_each_expression() -> None:
    """It has at most 600 characters: longer ones read the result of a recording rule with a name."""
    expressions = [
        (entry.get("record", entry.get("alert")), entry["expr"])
        for entries in yaml.safe_load(render(rules()))["groups"]
        for entry in entries["rules"]
    ]
    assert [name for name, expression in expressions if len(expression) > 600] == []


def test_prometheus_accepts_the_rules(tmp_path: Path) -> None:
    path = tmp_path / "rules.yml"
    path.write_text(render(rules(stale_seconds=300)))
    assert "gpumon_snapshot_timestamp_seconds > 300" in path.read_text()
    subprocess.run(["promtool", "check", "rules", "--lint=all", "--lint-fatal", path], check=True)


@each_case(
    "kind, version",
    [("prometheusrule", "monitoring.coreos.com/v1"), ("vmrule", "operator.victoriametrics.com/v1beta1")],
)
def test_operators_get_the_same_rules_as_an_object(kind: str, version: str) -> None:
    rendered = yaml.safe_load(render(rules(), kind=kind))
    assert rendered["spec"] == yaml.safe_load(render(rules()))
    assert (rendered["apiVersion"], rendered["kind"].lower()) == (version, kind)


def test_a_base_url_replaces_the_links_to_runbooks() -> None:
    """All alerts then link below it, those about the agent too."""
    groups = yaml.safe_load(render(rules(), runbooks="https://wiki.example.com/gpumon/"))["groups"]
    links = {rule["alert"]: rule["annotations"]["runbook_url"] for rule in groups[1]["rules"] if "alert" in rule}
    assert links == {rule.name: f"https://wiki.example.com/gpumon/{rule.section}" for rule in rules()}


def test_generated_files_are_fresh() -> None:
    """alert_rules/gpumon.yml and docs/alerts.md are what the tables render."""
    assert (ROOT / "alert_rules" / "gpumon.yml").read_text() == render(rules())
    assert (ROOT / "docs" / "alerts.md").read_text() == alerts_page()


def test_the_runbook_page_has_the_section_of_each_alert() -> None:
    titles = [line.removeprefix("### ") for line in alerts_page().splitlines() if line.startswith("### ")]
    assert len(set(titles)) == len(titles)
    assert {rule.section for rule in rules()} == set(titles)


def test_the_runbook_gives_the_advice_of_the_page() -> None:
    """The action of each GPU fault is in the steps of its check."""
    steps = [" ".join(rule.steps.split()) for rule in rules()]
    assert [
        fault
        for fault, advice in FAULTS.items()
        if fault != "no_permission" and not any(advice.action in text for text in steps)
    ] == []
