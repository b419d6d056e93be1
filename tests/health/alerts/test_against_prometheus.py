"""Property: random series give the same answers here and in a real Prometheus, for expressions and for alerts."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from promtool_run import Series, Values, check, group, selector
from recorded_scrape import recorded
from rule_cases import PLAIN, verdict

from gpumon.health.alerting import OF_VERDICTS, VERDICT, names, rules
from gpumon.health.alerts.alert import RESOLVED, Alert
from gpumon.health.alerts.evaluate import evaluate
from gpumon.health.alerts.expression import (
    Absent,
    Arithmetic,
    Combine,
    Compare,
    Expression,
    Highest,
    Now,
    Over,
    Reading,
    where,
    windows,
)
from gpumon.health.alerts.history import History
from gpumon.health.alerts.render import promql, render
from gpumon.health.alerts.rules import Rule
from gpumon.health.alerts.vector import View
from gpumon.health.table import CHECKS
from gpumon.model.reading import Sample

# Series: a few stretches each, of some steps at a value (a gauge) or of growth (a counter), or absent.

STEP = 15
"""Seconds between scrapes, which is also what a History keeps: nothing is thinned out here."""
STEPS = 48

GAUGE_VALUES = st.sampled_from([0.0, 1.0, 1.0, 0.5, 2.0, 85.0, -3.0, 1e9])
GROWTH = st.sampled_from([0.0, 0.0, 1.0, 0.25, 15.0, 1 / 3])


def stretches(values: st.SearchStrategy[float]) -> st.SearchStrategy[list[tuple[int, float | None]]]:
    return st.lists(st.tuples(st.integers(1, 9), st.none() | values), min_size=1, max_size=5)


def gauge(parts: Sequence[tuple[int, float | None]], steps: int) -> Values:
    """The stretches over and over until there are enough steps."""
    lengthened = (value for count, value in itertools.cycle(parts) for _ in range(count))
    return list(itertools.islice(lengthened, steps))


def counter(parts: Sequence[tuple[int, float | None]], steps: int) -> Values:
    """Each value of a stretch is growth a step; an absent stretch is followed by a start from 0."""
    total, values = 0.0, list[float | None]()
    for growth in gauge(parts, steps):
        total = 0.0 if growth is None else total + growth
        values.append(None if growth is None else total)
    return values


NAMES = {"gauge_one": gauge, "gauge_two": gauge, "one_total": counter, "two_total": counter}
LABELS = tuple((("kind", kind), ("uuid", uuid)) for kind in ("a", "b") for uuid in ("x", "y"))


@st.composite
def series(draw: st.DrawFn, steps: int) -> list[Series]:
    found = []
    for name, shape in NAMES.items():
        parts = stretches(GAUGE_VALUES if shape is gauge else GROWTH)
        found += [Series(name, labels, shape(draw(parts), steps)) for labels in LABELS]
    return found


# Expressions: any of the language whose sides match one to one

READINGS = st.builds(
    Reading,
    st.sampled_from(tuple(NAMES)),
    st.sampled_from([(), (), where(kind="a"), where(uuid=("x", "z")), where(kind=("a", "b"), uuid="y")]),
)
OVERS = st.builds(
    Over,
    st.sampled_from(["increase", "rate", "min_over_time", "max_over_time", "avg_over_time", "last_over_time"]),
    READINGS,
    st.sampled_from([15.0, 40.0, 62.0, 90.0, 300.0, 1200.0]),
)
NUMBERS = st.sampled_from([0.0, 1.0, 0.5, 2.0, 85.0, -2.5, 1e-3])
ON = st.sampled_from([None, ("uuid",), ("kind",), ("kind", "uuid"), ("nothing",)])


def larger(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    comparison = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])
    arithmetic = st.sampled_from(["+", "-", "*", "/"])
    return st.one_of(
        st.builds(Compare, inner, comparison, NUMBERS | inner),
        st.builds(Arithmetic, inner, arithmetic, NUMBERS | inner),
        st.builds(Arithmetic, NUMBERS | st.just(Now()), arithmetic, inner),
        st.builds(Combine, inner, st.sampled_from(["and", "or", "unless"]), inner, ON),
        st.builds(Highest, inner, st.sampled_from([("kind",), ("uuid",), ("kind", "uuid")])),
    )


EXPRESSIONS = st.recursive(READINGS | OVERS | st.builds(Absent, READINGS), larger, max_leaves=5)


def histories(expressions: Sequence[Expression], found: Sequence[Series]) -> list[History]:
    """The agent's history after each scrape."""
    history = History().watching([replace(PLAIN, expression=expression) for expression in expressions])
    return [history := history.add(seen_at(found, step), step * float(STEP)) for step in range(STEPS)]


def seen_at(found: Sequence[Series], step: int) -> list[Sample]:
    return [Sample(one.name, one.labels, value) for one in found if (value := one.values[step]) is not None]


def wanted(expression: Expression, history: History, at: float) -> dict[str, Any]:
    """A test of promtool that wants what we found."""
    found = View(history, at, at).vector(expression)
    return {
        "expr": f"({promql(expression)}) + 0",  # drops the metric's name
        "eval_time": f"{at:.0f}s",
        "exp_samples": [{"labels": selector("", labels), "value": value} for labels, value in found.items()],
    }


def finite(expression: Expression) -> Expression:
    """Without infinity and NaN, which promtool cannot be told to want."""
    return Compare(Compare(expression, "<", 1e300), ">", -1e300)


# Not shrunk: each try costs a promtool, and what that says of a failure is short enough.
RARELY = settings(
    max_examples=100,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)


GAP = [Series("one_total", (), [None if step == 30 else float(step) for step in range(STEPS)])]
"""One scrape is missing, so that the distance from the last point to the end of a window may be just over a step."""


@RARELY
@example(found=GAP, expressions=[Over("increase", Reading("one_total"), 62.0)], moments={*range(440, 480)})
@given(
    series(STEPS),
    st.lists(EXPRESSIONS, min_size=20, max_size=40),
    st.sets(st.integers(0, STEPS * STEP - 1), min_size=3, max_size=6),
)
def test_expressions_give_what_prometheus_gives(
    found: list[Series], expressions: list[Expression], moments: set[int]
) -> None:
    """Any expression over any series has the same labels and the same value, to the last bit, as in Prometheus."""
    asked = [finite(one) for one in expressions]
    known = histories(asked, found)
    tests = [wanted(one, known[at // STEP], float(at)) for at in moments for one in asked]
    with tempfile.TemporaryDirectory() as folder:
        check(Path(folder), "groups: []", [group(STEP, found, promql_expr_test=tests)], STEP)


# Texts

TEXTS = replace(
    PLAIN,
    name="Texts",
    expression=Reading("gauge_one"),
    for_=0.0,
    summary="{kind} {absent} {value:humanize}",
    description="{value:ratio} {value:.0f} {value:.2f}",
)
AMOUNTS = (
    st.floats(-1e27, 1e27) | st.floats(-1e-3, 1e-3) | st.floats(-2000, 2000) | st.integers(-20000, 20000).map(float)
)


@settings(RARELY, max_examples=10)
@given(st.lists(AMOUNTS, min_size=40, max_size=40))
def test_texts_are_those_of_prometheus(amounts: list[float]) -> None:
    """Labels and values of any size stand in the texts of an alert as Prometheus' templates write them."""
    found = [Series("gauge_one", (("kind", f"k{n}"),), [amount]) for n, amount in enumerate(amounts)]
    alerts = evaluate([TEXTS], History().watching([TEXTS]).add(seen_at(found, 0), 0.0), (), 0.0, 0.0)
    sent = {"eval_time": "0s", "alertname": "Texts", "exp_alerts": texts(TEXTS, alerts)}
    with tempfile.TemporaryDirectory() as folder:
        check(Path(folder), render([TEXTS]), [group(60, found, alert_rule_test=[sent])])


# Alerts over time

JUDGED = CHECKS[::10]
RECORDING = [*recorded(), *(verdict(one) for one in JUDGED)]
"""With a verdict of every tenth check."""
FLOOR = {"allreduce_gloo_busbw_bytes_per_second": 2.0, "snapshot_age_seconds": 300.0}
OTHERS = OF_VERDICTS - {"GpumonCheckUnknown", *(name for one in JUDGED for name in names(one))}
EVERY_RULE = tuple(replace(rule, evaluated=True) for rule in rules(FLOOR) if rule.name not in OTHERS)
MINUTES = 110
LEVELS: dict[str, list[float]] = {
    "gpumon_gpu_processes": [0.0, 1.0, 2.0],
    VERDICT: [1.0, 2.0, 3.0],
    "gpumon_maintenance_end_timestamp_seconds": [0.0, 0.0, 0.0, 600.0, 3000.0],
    "gpumon_snapshot_timestamp_seconds": [0.0, 3000.0, 6000.0],
    "gpumon_probe_allreduce_busbw_bytes_per_second": [1.0, 1.5, 2.0, 2e9],
    "gpumon_gpu_busy_seconds_total": [0.0, 12.0, 60.0],
    "gpumon_gpu_observed_seconds_total": [60.0, 60.0, 54.0],
}
"""Levels of a gauge, growth a step of a counter, chosen around the thresholds; other series are 0 or 1."""


def small_node() -> list[Sample]:
    """Of the recorded scrape, what the rules read of three GPUs."""
    names = {name for rule in EVERY_RULE if rule.alerting for name in windows(rule.alerting)}
    few = {"gpu": {"0", "1", "3"}}
    return [
        sample
        for sample in RECORDING
        if sample.name in names and all(value in few.get(name, {value}) for name, value in sample.labels)
    ]


@st.composite
def node_over_time(draw: st.DrawFn) -> list[Series]:
    found = []
    for sample in small_node():
        levels = st.sampled_from(LEVELS.get(sample.name, [0.0, 0.0, 1.0]))
        parts = draw(st.lists(st.tuples(st.integers(1, 40), st.none() | levels | levels), min_size=1, max_size=5))
        shape = counter if sample.name.endswith("_total") else gauge
        found.append(Series(sample.name, sample.labels, shape(parts, MINUTES)))
    return found


def alerts_over_time(found: Sequence[Series]) -> Iterator[tuple[int, tuple[Alert, ...]]]:
    history = History().watching(EVERY_RULE)
    alerts: tuple[Alert, ...] = ()
    for minute in range(MINUTES):
        history = history.add(seen_at(found, minute), minute * 60.0)
        alerts = evaluate(EVERY_RULE, history, alerts, minute * 60.0, minute * 60.0)
        yield minute, alerts


def as_series(alerts: tuple[Alert, ...]) -> list[dict[str, Any]]:
    """The ALERTS series that Prometheus writes of its alerts."""
    named = ((*alert.identity, ("alertstate", alert.state)) for alert in alerts if alert.state != RESOLVED)
    return [{"labels": selector("ALERTS", labels), "value": 1} for labels in named]


def texts(rule: Rule, alerts: tuple[Alert, ...]) -> list[dict[str, Any]]:
    """What Prometheus would send of the firing alerts of a rule."""
    return [
        {
            "exp_labels": {name: value for name, value in alert.identity if name != "alertname"},
            "exp_annotations": {
                "summary": alert.summary,
                "description": alert.description,
                "runbook_url": alert.runbook_url,
            },
        }
        for alert in alerts
        if alert.rule == rule.name and alert.state == "firing"
    ]


@settings(RARELY, max_examples=15)
@given(node_over_time())
def test_alerts_go_through_the_states_that_prometheus_goes_through(found: list[Series]) -> None:
    """Minute by minute the same alerts are pending and firing, with the same labels and texts."""
    states, sent = [], []
    for minute, alerts in alerts_over_time(found):
        time = f"{minute}m"
        states.append({"expr": "ALERTS", "eval_time": time, "exp_samples": as_series(alerts)})
        if minute % 10 == 5:
            sent += [
                {"eval_time": time, "alertname": rule.name, "exp_alerts": texts(rule, alerts)} for rule in EVERY_RULE
            ]
    with tempfile.TemporaryDirectory() as folder:
        check(Path(folder), render(EVERY_RULE), [group(60, found, promql_expr_test=states, alert_rule_test=sent)])
