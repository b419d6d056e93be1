"""Every rule against the recorded scrape: in Prometheus, and in the agent's own evaluation."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from string import Formatter
from typing import Any

import pytest
from promtool_run import Series, check, group, packed
from recorded_scrape import TARGET, recorded
from rule_cases import CASES, PLAIN, Case, labels_of

from gpumon.health.alerting import VERDICT, WARNING, rules
from gpumon.health.alerts.alert import FIRING, RESOLVED, Alert
from gpumon.health.alerts.evaluate import evaluate
from gpumon.health.alerts.expression import Compare, Reading, windows
from gpumon.health.alerts.faults import FAULTS
from gpumon.health.alerts.history import History
from gpumon.health.alerts.render import render, runbook
from gpumon.health.alerts.rules import THRESHOLDS, Rule, UnknownThreshold
from gpumon.health.alerts.vector import MatchError, View
from gpumon.health.table import CHECKS
from gpumon.model.gpu import Gpu
from gpumon.model.health_metrics import HealthMetrics
from gpumon.model.node import Node
from gpumon.model.nvlink import Nvlink
from gpumon.model.reading import Sample, Table, rows, samples
from gpumon.probe.core.metrics import AllReduce

ROOT = Path(__file__).parents[3]
RECORDING = recorded()
SHIPPED = rules({})
FLOOR = "allreduce_gloo_busbw_bytes_per_second"
STEP = 60
"""Seconds between two scrapes in the cases."""

Frame = tuple[float, list[Sample]]
"""One scrape: seconds since the start, and its series."""


RULES = {rule.name: rule for rule in rules({name: value for case in CASES for name, value in case.thresholds.items()})}
"""With the thresholds of every case."""


def rule_of(case: Case) -> Rule:
    return RULES[case.rule]


def needed(case: Case) -> list[Sample]:
    """The recorded series that the rule of a case reads."""
    expression = rule_of(case).alerting
    assert expression is not None
    names = windows(expression)
    return [sample for sample in (*RECORDING, *case.added) if sample.name in names]


def value_at(case: Case, sample: Sample, minute: float) -> float | None:
    for change in case.changes:
        if change.applies(sample):
            return change.course(sample.value, minute)
    return sample.value


def frames(case: Case) -> Iterator[Frame]:
    """Scrape after scrape of a case."""
    for minute in range(case.recovered + 1):
        values = ((sample, value_at(case, sample, minute)) for sample in needed(case))
        yield minute * 60.0, [sample._replace(value=value) for sample, value in values if value is not None]


def alerts_by_minute(case: Case) -> dict[int, tuple[Alert, ...]]:
    # What is rendered only is evaluated here all the same: its texts are held against those of Prometheus.
    rule = replace(rule_of(case), evaluated=True)
    history, found = History().watching([rule]), dict[int, tuple[Alert, ...]]()
    alerts: tuple[Alert, ...] = ()
    for at, seen in frames(case):
        history = history.add(seen, at)
        alerts = evaluate([rule], history, alerts, at, at)
        found[int(at // 60)] = alerts
    return found


def firing(alerts: tuple[Alert, ...]) -> list[Alert]:
    return [alert for alert in alerts if alert.state == FIRING]


def for_promtool(case: Case) -> dict[str, Any]:
    minutes = range(case.recovered + 1)
    series = [
        Series(sample.name, sample.labels, [value_at(case, sample, minute) for minute in minutes])
        for sample in needed(case)
    ]
    (alert,) = firing(alerts_by_minute(case)[case.firing])
    labels = dict(labels_of(case, RECORDING)) | {"severity": rule_of(case).severity}
    texts = {"summary": case.summary, "description": alert.description, "runbook_url": alert.runbook_url}
    fired = [{"exp_labels": labels, "exp_annotations": texts}]
    expected: list[tuple[int, list[dict[str, Any]]]] = [(case.quiet, []), (case.firing, fired), (case.recovered, [])]
    tests = [{"eval_time": f"{minute}m", "alertname": case.rule, "exp_alerts": alerts} for minute, alerts in expected]
    return group(STEP, series, alert_rule_test=tests)


def names_in_tables() -> set[str]:
    tables: tuple[type[Table], ...] = (Node, HealthMetrics, Gpu, Nvlink, AllReduce)
    return {table.PREFIX + attribute for table in tables for attribute, row in rows(table).items() if not row.identity}


def test_every_rule_has_a_case() -> None:
    """A rule without a case is not finished, and a case without a rule tests nothing."""
    assert {case.rule for case in CASES} == {rule.name for rule in SHIPPED}


def test_every_rule_has_its_own_name() -> None:
    """Two alerts for one fault would be one too many, whether a check makes them or a reading."""
    names = [rule.name for rule in SHIPPED]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule}-{case.changes[0].name}")
def test_case_changes_only_recorded_series(case: Case) -> None:
    """Every change of a case applies to a series that was recorded."""
    for change in case.changes:
        assert any(change.applies(sample) for sample in (*RECORDING, *case.added)), change


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule}-{case.changes[0].name}")
def test_agent_fires_stays_quiet_and_recovers(case: Case) -> None:
    """In the agent's own evaluation a rule is quiet on the recorded node, fires once for the change, and resolves."""
    found = alerts_by_minute(case)
    assert not firing(found[case.quiet])
    (alert,) = firing(found[case.firing])
    assert alert.labels == labels_of(case, RECORDING)
    assert alert.summary == case.summary
    assert not firing(found[case.recovered])
    assert [one.state for one in found[case.recovered]] == [RESOLVED]


def test_prometheus_fires_stays_quiet_and_recovers(tmp_path: Path) -> None:
    """Prometheus, given the rendered rules and the same series, fires, stays quiet and recovers at the same times."""
    check(tmp_path, render(RULES.values()), packed(for_promtool(case) for case in CASES))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule}-{case.changes[0].name}")
def test_firing_alert_outlasts_a_hanging_driver_call(case: Case) -> None:
    """While a driver call hangs readings of its GPU and of the driver are absent, and nothing that fires resolves."""
    rule = replace(rule_of(case), evaluated=True)
    history = History().watching([rule])
    alerts: tuple[Alert, ...] = ()
    hang = case.firing + 1
    for at, seen in frames(case):
        minute = at // 60
        if minute > hang + 9:
            break
        shown = seen if minute < hang else list(without_readings(case))
        history = history.add(shown, at)
        alerts = evaluate([rule], history, alerts, at, at)
        if minute >= case.firing:
            assert [alert.labels for alert in firing(alerts)] == [labels_of(case, RECORDING)]


def without_readings(case: Case) -> Iterator[Sample]:
    """What the agent still shows of a case at its firing minute: its own rows, not the driver's."""
    own = {
        table.PREFIX + attribute
        for table in (Node, HealthMetrics, Gpu, AllReduce)
        for attribute, row in rows(table).items()
        if type(row.source).__name__ == "Agent" and attribute not in {"gpus_visible", "nvlinks_active"}
    }
    for sample in needed(case):
        value = value_at(case, sample, case.firing)
        if value is not None and (sample.name in own or sample.name == "up"):
            yield sample._replace(value=value)


def test_recorded_node_is_healthy(tmp_path: Path) -> None:
    """On the recorded scrape, unchanged for two hours, neither back end fires anything."""
    watched = [rule for rule in SHIPPED if rule.evaluated]
    history = History().watching(watched)
    alerts: tuple[Alert, ...] = ()
    for minute in range(0, 121, 5):
        history = history.add(RECORDING, minute * 60.0)
        alerts = evaluate(watched, history, alerts, minute * 60.0, minute * 60.0)
        assert alerts == ()
    names = {name for rule in watched if rule.alerting for name in windows(rule.alerting)}
    still = [Series(one.name, one.labels, [one.value] * 121) for one in RECORDING if one.name in names]
    quiet = [{"expr": "ALERTS", "eval_time": f"{minute}m", "exp_samples": []} for minute in (5, 60, 120)]
    check(tmp_path, render(watched), [group(STEP, still, promql_expr_test=quiet)])


def test_rules_name_metrics_of_the_tables() -> None:
    """A rule that names a metric which no table has could never fire."""
    everything = rules(dict.fromkeys(THRESHOLDS, 1.0))
    named = {name for rule in everything if rule.expression for name in windows(rule.expression)}
    assert named - names_in_tables() == {"up"}


def test_recording_has_what_the_tables_have() -> None:
    """The recorded scrape shows each family that a rule reads, so that the cases stand on real series."""
    everything = rules(dict.fromkeys(THRESHOLDS, 1.0))
    named = {name for rule in everything if rule.expression for name in windows(rule.expression)}
    assert named - {sample.name for sample in RECORDING} == {VERDICT}  # it is well


def test_prometheus_accepts_the_rendered_rules(tmp_path: Path) -> None:
    """Prometheus finds nothing to complain about, neither in the shipped rules nor with all thresholds set."""
    for name, chosen in (("shipped", {}), ("all", dict.fromkeys(THRESHOLDS, 2.5e11))):
        path = tmp_path / f"{name}.yml"
        path.write_text(render(rules(chosen)))
        subprocess.run(["promtool", "check", "rules", "--lint=all", "--lint-fatal", path], check=True)


def test_committed_files_are_fresh() -> None:
    """alert_rules/gpumon.yml and docs/alerts.md are what the table renders."""
    assert (ROOT / "alert_rules" / "gpumon.yml").read_text() == render(SHIPPED)
    assert (ROOT / "docs" / "alerts.md").read_text() == runbook(SHIPPED)


def test_runbook_has_the_section_that_the_alert_links_to() -> None:
    """The anchor of a runbook URL is the lower-cased title of a section of the page."""
    titles = [line.removeprefix("### ") for line in runbook(SHIPPED).splitlines() if line.startswith("### ")]
    assert len(set(titles)) == len(titles)
    assert {rule.runbook_url.partition("#")[2] for rule in SHIPPED} == {title.lower() for title in titles}
    assert rules({}, "https://wiki/{anchor}")[0].runbook_url == "https://wiki/gpumondown"


def test_warning_of_a_check_shares_the_section_of_its_failure() -> None:
    """What to do about both is written once."""
    both = [one.alert for one in CHECKS if len(one.levels) == 2]
    assert both
    for alert in both:
        urls = {rule.runbook_url for rule in SHIPPED if rule.name in {alert, alert + WARNING}}
        assert len(urls) == 1


@pytest.mark.parametrize("fault", sorted(set(FAULTS) - {"no_permission"}))
def test_runbook_says_of_a_fault_what_the_page_says(fault: str) -> None:
    """Two pieces of advice on one fault would be one too many."""
    assert [one for one in SHIPPED if FAULTS[fault].action in " ".join(one.action.split())]


def test_generated_page_names_the_command_that_makes_it() -> None:
    """`gpumon rules render` makes the rule file, and not the runbook page."""
    assert "Generated by `make generate`" in runbook(SHIPPED)
    assert "Generated by `gpumon rules render`" in render(SHIPPED)


def test_threshold_overrides_both_back_ends() -> None:
    """One override changes what Prometheus is given and what the agent finds."""
    slow = next(rule for rule in rules({FLOOR: 40}) if rule.name == "AllReduceBandwidthLow")
    assert "< 40" in render([slow])
    reading = Sample("gpumon_probe_allreduce_busbw_bytes_per_second", (("backend", "gloo"), ("bytes", "8")), 39.0)
    (alert,) = evaluate([slow], History().watching([slow]).add([reading], 0.0), (), 0.0, 0.0)
    assert (alert.state, alert.value) == ("firing", 39.0)


def test_unset_threshold_switches_off_what_needs_it() -> None:
    """Without a floor for the bandwidth its rule is neither rendered nor evaluated; one floor is enough."""
    off = {rule.name: rule for rule in rules({"idle_busy_ratio": None})}
    assert [name for name, rule in off.items() if rule.expression is None] == ["AllReduceBandwidthLow", "GpuIdle"]
    assert "AllReduceBandwidthLow" not in render(off.values())
    floor = rules({"allreduce_nccl_busbw_bytes_per_second": 4e11})
    (one,) = (rule for rule in floor if rule.name == "AllReduceBandwidthLow")
    assert "< 400000000000" in render([one])
    assert "gloo" not in render([one])


def test_unknown_threshold_is_named_with_the_known_ones() -> None:
    """A misspelt threshold is an error that tells the right names."""
    with pytest.raises(UnknownThreshold, match=r"gpu_temp: the rules have .*idle_busy_ratio"):
        rules({"gpu_temp": 90})


def test_texts_name_labels_that_the_alert_has() -> None:
    """Placeholders of the texts are labels of the series that the case fires for, or the value."""
    for case in CASES:
        known = {"value", *dict(labels_of(case, RECORDING))}
        rule = rule_of(case)
        fields = {name for _, name, _, _ in Formatter().parse(rule.summary + rule.description) if name is not None}
        assert fields <= known, case.rule


def test_samples_of_tables_are_what_rules_read() -> None:
    """A value of a table reaches a rule under the name and labels that Prometheus sees."""
    rule = next(rule for rule in SHIPPED if rule.name == "GpuRowRemapFailed")
    shown = samples(HealthMetrics(health_check={"gpu_row_remap_failed,3,GPU-x,,": 3.0}), ())
    (alert,) = evaluate([rule], History().watching([rule]).add(shown, 5.0), (), 5.0, 1e9)
    assert alert.identity == (
        ("alertname", "GpuRowRemapFailed"),
        ("check", "gpu_row_remap_failed"),
        ("gpu", "3"),
        ("severity", "critical"),
        ("uuid", "GPU-x"),
    )
    assert (alert.state, alert.since, alert.firing_since) == (FIRING, 1e9, 1e9)


@pytest.mark.parametrize(("left", "right"), [("one", "both"), ("both", "one")])
def test_ambiguous_match_is_an_error(left: str, right: str) -> None:
    """As in Prometheus, two series of one side that match one of the other are an error, never a guess."""
    both = [Sample("both", (("kind", kind),), 1.0) for kind in ("a", "b")]
    expression = Compare(Reading(left), "==", Reading(right), on=("uuid",))
    watched = History().watching([replace(PLAIN, expression=expression)])
    with pytest.raises(MatchError, match="match on"):
        View(watched.add([Sample("one", (), 1.0), *both], 0.0), 0.0, 0.0).vector(expression)


def test_target_labels_are_not_the_agents() -> None:
    """No series of the agent carries a label that Prometheus adds itself."""
    assert all(not set(dict(sample.labels[: -len(TARGET)])) & dict(TARGET).keys() for sample in RECORDING)
