"""No rule fires because of a release, and of what fires already only the driver's own alerts are silenced by it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from promtool_run import Series, check, group
from recorded_scrape import TARGET, recorded
from rule_cases import CASES, Case, labels_of
from test_rules import STEP, firing, frames, rule_of

from gpumon.health.alerting import rules
from gpumon.health.alerts.alert import Alert
from gpumon.health.alerts.evaluate import evaluate
from gpumon.health.alerts.expression import windows
from gpumon.health.alerts.history import History
from gpumon.health.alerts.render import render
from gpumon.model.gpu import Gpu
from gpumon.model.node import Node
from gpumon.model.reading import Agent, Sample, rows

SHIPPED = rules({})
RECORDING = [*recorded(), Sample("gpumon_release_end_timestamp_seconds", TARGET, 1e9)]
NODE_RELEASED, NODE_BACK, ONE_RELEASED, ONE_BACK, END = 5, 27, 45, 67, 80
"""Minutes. Either release outlasts the time for which alerts are kept."""
POINTLESS = {"gpumon_nvml_up", "gpumon_gpus_visible", "gpumon_gpus_on_pci_bus", "gpumon_snapshot_timestamp_seconds"}
"""Rows of the node that are absent while the driver itself is released."""
SILENCED = {"GpumonStale"}
"""What says that the driver is not read: asked for now, it is no news."""


def of_the_driver(name: str) -> bool:
    """Whether a series is of a GPU, and goes with its readings."""
    own = {
        table.PREFIX + attribute
        for table in (Node, Gpu)
        for attribute, row in rows(table).items()
        if isinstance(row.source, Agent) and attribute not in {"up", "nvlinks_active"}
    }
    return name.startswith(("gpumon_gpu_", "gpumon_nvlink_")) and name not in own


def released(sample: Sample, value: float) -> float | None:
    """A series while the whole node is released."""
    if sample.name in POINTLESS or of_the_driver(sample.name):
        return None
    return 1.0 if sample.name == "gpumon_gpu_released" else value


def one_released(sample: Sample, value: float) -> float | None:
    """A series while GPU 3 is reset: the driver does not count it, and its neighbour's links are down."""
    labels = dict(sample.labels)
    if labels.get("gpu") == "3":
        return released(sample, value)
    if sample.name == "gpumon_gpus_visible":
        return value - 1
    return 0.0 if sample.name == "gpumon_nvlink_up" and labels["gpu"] == "4" else value


def at(sample: Sample, minute: int) -> float | None:
    """One series of a node that is released, taken up again, and then one GPU of it."""
    value = 60.0 * minute if sample.name == "gpumon_snapshot_timestamp_seconds" else sample.value
    if NODE_RELEASED <= minute < NODE_BACK:
        return released(sample, value)
    if ONE_RELEASED <= minute < ONE_BACK:
        return one_released(sample, value)
    return None if sample.name == "gpumon_release_end_timestamp_seconds" else value


def test_prometheus_fires_nothing_because_of_a_release(tmp_path: Path) -> None:
    """Before, during, at the ends of and after a release of the node and of one GPU, with every rule there is."""
    names = {name for rule in SHIPPED if rule.alerting for name in windows(rule.alerting)}
    series = [
        Series(one.name, one.labels, [at(one, minute) for minute in range(END + 1)])
        for one in RECORDING
        if one.name in names
    ]
    quiet = [{"expr": "ALERTS", "eval_time": f"{minute}m", "exp_samples": []} for minute in range(1, END + 1)]
    check(tmp_path, render(SHIPPED), [group(STEP, series, promql_expr_test=quiet)])


def test_the_agent_fires_nothing_because_of_a_release() -> None:
    """Nor does its own evaluation."""
    watched = [replace(rule, evaluated=True) for rule in SHIPPED]
    history, alerts = History().watching(watched), tuple[Alert, ...]()
    for minute in range(END + 1):
        seen = [one._replace(value=value) for one in RECORDING if (value := at(one, minute)) is not None]
        history = history.add(seen, 60.0 * minute)
        alerts = evaluate(watched, history, alerts, 60.0 * minute, 60.0 * minute)
        assert alerts == (), minute


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule}-{case.changes[0].name}")
def test_what_fires_goes_on_firing_in_a_release(case: Case) -> None:
    """For ten minutes at least, but for what says that the driver is not read, which resolves."""
    rule = replace(rule_of(case), evaluated=True)
    history, alerts = History().watching([rule]), tuple[Alert, ...]()
    last: list[Sample] = []
    before = dict(frames(case))
    for minute in range(case.firing + 11):
        if minute <= case.firing:
            last = seen = before[60.0 * minute]
        else:
            shown = ((one, released(one, one.value)) for one in last)
            seen = [one._replace(value=value) for one, value in shown if value is not None]
        history = history.add(seen, 60.0 * minute)
        alerts = evaluate([rule], history, alerts, 60.0 * minute, 60.0 * minute)
    expected = [] if case.rule in SILENCED else [labels_of(case, RECORDING)]
    assert [alert.labels for alert in firing(alerts)] == expected
