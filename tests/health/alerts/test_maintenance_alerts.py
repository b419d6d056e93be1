"""In maintenance nothing pages, in either back end; what is for information goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from promtool_run import Series, check, group, packed
from rule_cases import CASES, Case, labels_of
from test_rules import RECORDING, RULES, STEP, alerts_by_minute, firing, needed, rule_of, value_at

from gpumon.health.alerts.alert import Alert
from gpumon.health.alerts.evaluate import evaluate
from gpumon.health.alerts.history import History
from gpumon.health.alerts.render import render
from gpumon.health.alerts.rules import PAGING

END = "gpumon_maintenance_end_timestamp_seconds"


def end_at(case: Case, minute: float) -> float:
    """The metric: from minute 5 the node is in maintenance, for one minute more than the alert takes to fire."""
    return (case.firing + 1) * 60.0 if minute >= 5 else 0.0


def value(case: Case, name: str, sample: Any, minute: float) -> float | None:
    return end_at(case, minute) if name == END else value_at(case, sample, minute)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule}-{case.changes[0].name}")
def test_agent_mutes_what_pages(case: Case) -> None:
    """What would fire does not; what is for information does."""
    rule = replace(rule_of(case), evaluated=True)
    history, alerts = History().watching([rule]), tuple[Alert, ...]()
    for minute in range(case.firing + 1):
        seen = ((one, value(case, one.name, one, minute)) for one in (*needed(case), *_end_if_not_needed(case)))
        history = history.add([one._replace(value=now) for one, now in seen if now is not None], minute * 60.0)
        alerts = evaluate([rule], history, alerts, minute * 60.0, minute * 60.0)
    assert bool(firing(alerts)) == (rule.severity not in PAGING)
    assert firing(alerts_by_minute(case)[case.firing])  # without a maintenance


def _end_if_not_needed(case: Case) -> list[Any]:
    return [one for one in RECORDING if one.name == END] if END not in {one.name for one in needed(case)} else []


def test_prometheus_mutes_what_pages(tmp_path: Path) -> None:
    """The same of the rendered rules."""
    groups = []
    for case in CASES:
        minutes = range(case.firing + 1)
        series = [
            Series(one.name, one.labels, [value(case, one.name, one, minute) for minute in minutes])
            for one in needed(case)
        ]
        quiet = {"eval_time": f"{case.firing}m", "alertname": case.rule, "exp_alerts": []}
        if rule_of(case).severity in PAGING:
            groups.append(group(STEP, series, alert_rule_test=[quiet]))
    assert len(groups) > len(CASES) / 2
    check(tmp_path, render(RULES.values()), packed(groups))


def test_a_node_that_is_down_for_its_maintenance_pages_when_that_is_over(tmp_path: Path) -> None:
    """The agent's own series have been gone for long by then; another node, not in maintenance, pages in time."""
    target, other = (("instance", "node-1:17400"), ("job", "gpumon")), (("instance", "node-2:17400"), ("job", "gpumon"))
    minutes = range(200)
    series = [
        Series(END, target, [180 * 60.0 if minute < 10 else None for minute in minutes]),
        Series(END, other, [0.0 if minute < 10 else None for minute in minutes]),
        *(Series("up", labels, [float(minute < 10) for minute in minutes]) for labels in (target, other)),
    ]

    def down(minute: int, *nodes: str) -> dict[str, Any]:
        alerts = [
            f'ALERTS{{alertname="GpumonDown",alertstate="firing",instance="{node}",job="gpumon",severity="critical"}}'
            for node in nodes
        ]
        return {
            "expr": 'ALERTS{alertname="GpumonDown",alertstate="firing"}',
            "eval_time": f"{minute}m",
            "exp_samples": [{"labels": alert, "value": 1} for alert in alerts],
        }

    tests = [down(9), down(20, "node-2:17400"), down(170, "node-2:17400"), down(190, "node-1:17400", "node-2:17400")]
    check(tmp_path, render(RULES.values()), [group(STEP, series, promql_expr_test=tests)])


def test_every_rule_that_pages_is_muted() -> None:
    """There is no way to write one that is not."""
    for rule in RULES.values():
        assert rule.alerting is None or (END in repr(rule.alerting)) == (rule.severity in PAGING)
    assert {labels_of(case, RECORDING) for case in CASES}
