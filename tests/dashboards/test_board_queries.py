"""Queries of the dashboards over invented histories, evaluated by promtool."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import yaml

from dashboards.answers import Source
from dashboards.generate import DASHBOARDS, dashboards
from gpumon.fleet.recording_rules import DAILY_RULES, FAILED

sys.path.append(str(Path(__file__).parents[1] / "health"))
from promtool_run import Series, check, group, selector

pytestmark = pytest.mark.slow
STEP = 120
"""Seconds between two samples: promtool reads at most 10,000 samples of a series."""
HOUR = 3600 // STEP
WEEK = 7 * 24 * HOUR
NODE = (("instance", "node"), ("job", "gpumon"))


def query(board: str, title: str, place: int = 0, **variables: str) -> str:
    """Return a query of a panel as Grafana sends it."""
    [dashboard] = [dashboard for dashboard in DASHBOARDS if dashboard.uid == board]
    [panel] = [panel for panel in dashboard.panels if panel.title == title]
    source = Source(url="", start=0, end=0, step=60, scrape_interval=60, variables=variables)
    return source.filled(panel.queries[place].expr)


def _recorded_level(level: float | None) -> float | None:
    """Return what the recording rule makes of a verdict."""
    return None if level in {None, 1.0} else float(level == 3)


HISTORIES: Mapping[str, tuple[Callable[[int], float | None], float | None]] = {
    "healthy for an hour, then failed": (lambda step: 0.0 if step < HOUR else 3.0, 1.0),
    "never healthy": (lambda _: 3.0, 0.0),
    "healthy": (lambda _: 0.0, -1.0),
    "warned": (lambda _: 2.0, -1.0),
    "unknown": (lambda _: 1.0, None),
    "unknown but for a failure": (lambda step: 3.0 if 10 * HOUR <= step < 12 * HOUR else 1.0, 0.0),
    "failed two minutes in each hour": (lambda step: 3.0 if step % HOUR == 1 else 0.0, 1.0),
    "unknown within a failure": (lambda step: (0.0, 3.0, 1.0, 3.0)[step * 4 // WEEK], 42.0),
    "silent after a failure": (
        lambda minute: 0.0 if minute < 100 * HOUR else 3.0 if minute < 101 * HOUR else None,
        100.0,
    ),
}
"""Verdict of a node at each step, and the hours between failures; -1 without a failure."""


def test_hours_between_failures_count_healthy_hours_only(tmp_path: Path) -> None:
    """Hours of failure or without a verdict do not count; a failure of two minutes is one."""
    expr = query("gpumon-fleet", "Hours between failures?")
    groups = []
    for at, hours in HISTORIES.values():
        history = Series(FAILED, NODE, [_recorded_level(at(step)) for step in range(WEEK)])
        samples = [] if hours is None else [{"labels": "{}", "value": hours}]
        wanted = {"expr": expr, "eval_time": f"{STEP * (WEEK - 1)}s", "exp_samples": samples}
        groups.append(group(STEP, [history], promql_expr_test=[wanted]))
    daily = [{"record": name, "expr": rule} for name, rule in DAILY_RULES.items()]
    check(tmp_path, yaml.safe_dump({"groups": [{"name": "daily", "rules": daily}]}), groups, step=STEP * (WEEK - 1))


MINUTES = 10


def _constant(name: str, value: float, **labels: str) -> Series:
    return Series(name, tuple(labels.items()), [value] * MINUTES)


def _expects(
    folder: Path, series: Sequence[Series], expr: str, minute: int, wanted: Sequence[tuple[Mapping[str, str], float]]
) -> None:
    samples = [{"labels": selector("", tuple(labels.items())), "value": value} for labels, value in wanted]
    test = {"expr": expr, "eval_time": f"{minute}m", "exp_samples": samples}
    check(folder, "{}", [group(60, series, promql_expr_test=[test])])


NODES = [
    _constant(name, value, **cluster, instance=instance, job="gpumon")
    for cluster, instance, health in (
        ({"cluster": "a"}, "twin", 3),
        ({"cluster": "b"}, "twin", 2),
        ({"cluster": "b"}, "other", 2),
        ({}, "without", 0),
    )
    for name, value in (("up", 1), ("gpumon_node_health", health))
]
"""Two nodes of one name in two clusters, another node, and one without a label for its cluster."""
FIRING = {"alertstate": "firing", "class": "hardware", "page": "night"}
ALERTS = [
    _constant("ALERTS", 1, alertname="GpuLost", severity="critical", **FIRING, **cluster, instance="twin")
    for cluster in ({"cluster": "a"}, {"cluster": "b"}, {})
] + [_constant("ALERTS", 1, alertname="GpumonWatchdog", **FIRING)]


def test_nodes_of_one_name_in_two_clusters_are_two(tmp_path: Path) -> None:
    """They are two rows; the cluster is in the name of a row only if the name alone is not unique."""
    been = [
        ({"cluster": "a", "instance": "twin"}, 3.0),
        ({"cluster": "b", "instance": "twin"}, 2.0),
        ({"cluster": "b", "instance": "other"}, 2.0),
        ({"instance": "without"}, 0.0),
    ]
    rows = [
        ({"cluster": "a", "instance": "a/twin", "check": "worst"}, 3.0),
        ({"cluster": "b", "instance": "b/twin", "check": "worst"}, 2.0),
        ({"cluster": "b", "instance": "other", "check": "worst"}, 2.0),
        ({"instance": "others", "check": "worst"}, 0.0),
    ]
    _expects(tmp_path, NODES, query("gpumon-fleet", "How has each node been?"), 5, been)
    _expects(tmp_path, NODES, query("gpumon-fleet", "Which check is bad on which node?"), 5, rows)


def test_the_cluster_selects_nodes_and_alerts(tmp_path: Path) -> None:
    been = query("gpumon-fleet", "How has each node been?", cluster="a")
    _expects(tmp_path, NODES, been, 5, [({"cluster": "a", "instance": "twin"}, 3.0)])
    firing = query("gpumon-agents", "Alerts that fire?", cluster="a", instance="twin")
    _expects(tmp_path, ALERTS[:2] + ALERTS[3:], firing, 5, [({}, 1.0)])
    without = query("gpumon-agents", "Alerts that fire?", instance="twin")
    _expects(tmp_path, ALERTS[2:], without, 5, [({}, 1.0)])


def test_a_restart_between_two_scrapes_is_an_annotation(tmp_path: Path) -> None:
    """The agent answers every scrape, and its start time changes; a gap in the scrapes alone is none."""
    annotations = json.loads(dashboards()["gpumon-node.json"])["annotations"]["list"]
    [expr] = [annotation["expr"] for annotation in annotations if annotation["name"] == "Agent started"]
    expr = Source(url="", start=0, end=0, step=60, scrape_interval=60, variables={}).filled(expr)
    label = {"instance": "node"}
    name, early, late = "gpumon_start_timestamp_seconds", -3600.0, 270.0
    restarted = Series(name, tuple(label.items()), [early] * 5 + [late] * 5)
    missed: list[float | None] = [early] * 4 + [None] + [early] * 5
    named = {"__name__": name, **label}
    _expects(tmp_path, [restarted], expr, 5, [(named, late)])
    _expects(tmp_path, [restarted], expr, 7, [])
    _expects(tmp_path, [Series(name, tuple(label.items()), missed)], expr, 5, [])
