"""Queries of the dashboards over invented histories, evaluated by promtool."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import yaml

from dashboards.answers import Source
from dashboards.generate import DASHBOARDS
from gpumon.health.fleet_rules import DAILY_RULES, FAILED

sys.path.append(str(Path(__file__).parents[1] / "health"))
from promtool_run import Series, check, group

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


def _failed(level: float | None) -> float | None:
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
        history = Series(FAILED, NODE, [_failed(at(step)) for step in range(WEEK)])
        samples = [] if hours is None else [{"labels": "{}", "value": hours}]
        wanted = {"expr": expr, "eval_time": f"{STEP * (WEEK - 1)}s", "exp_samples": samples}
        groups.append(group(STEP, [history], promql_expr_test=[wanted]))
    daily = [{"record": name, "expr": rule} for name, rule in DAILY_RULES.items()]
    check(tmp_path, yaml.safe_dump({"groups": [{"name": "daily", "rules": daily}]}), groups, step=STEP * (WEEK - 1))
