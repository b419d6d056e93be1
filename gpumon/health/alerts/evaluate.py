"""The life of alerts: what the rules say now, and what became of the alerts there were. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from gpumon.health.alerts.alert import FIRING, PENDING, RESOLVED, Alert
from gpumon.health.alerts.history import History
from gpumon.health.alerts.rules import Rule
from gpumon.health.alerts.template import filled
from gpumon.health.alerts.vector import Vector, View
from gpumon.model.reading import Labels

RESOLVED_FOR = 900.0
"""Seconds for which a resolved alert is kept."""


def evaluate(
    rules: Iterable[Rule], history: History, previous: tuple[Alert, ...], at: float, wall: float
) -> tuple[Alert, ...]:
    """The alerts that follow `previous`, in the order of the rules, then of their labels. `at`: boot clock."""
    view = View(history, at, wall)
    before: dict[str, dict[Labels, Alert]] = {}
    for alert in previous:
        before.setdefault(alert.rule, {})[alert.labels] = alert
    return tuple(
        alert
        for rule in rules
        if rule.alerting is not None and rule.evaluated
        for alert in _instances(rule, view.vector(rule.alerting), before.get(rule.name, {}), at, wall)
    )


def _instances(rule: Rule, found: Vector, before: Mapping[Labels, Alert], at: float, wall: float) -> Iterator[Alert]:
    # The rule's own severity takes the place of a label of that name, as in Prometheus.
    true = {tuple(pair for pair in series if pair[0] != "severity"): (series, value) for series, value in found.items()}
    for labels in sorted({*true, *before}):
        known = before.get(labels)
        if labels in true:
            yield _active(rule, labels, *true[labels], known, at=at, wall=wall)
        elif known is not None and (quiet := _quiet(rule, known, at, wall)) is not None:
            yield quiet


def _active(
    rule: Rule, labels: Labels, series: Labels, value: float, known: Alert | None, *, at: float, wall: float
) -> Alert:
    if known is None or known.state == RESOLVED:
        known = Alert(
            rule=rule.name,
            severity=rule.severity,
            state=PENDING,
            labels=labels,
            summary=filled(rule.summary, series, value),
            description=filled(rule.description, series, value),
            runbook_url=rule.runbook_url,
            value=value,
            active_at=at,
            since=wall,
        )
    elif known.value != value or known.quiet_since is not None:
        known = replace(
            known,
            value=value,
            summary=filled(rule.summary, series, value),
            description=filled(rule.description, series, value),
            quiet_since=None,
        )
    if known.state == PENDING and at - known.active_at >= rule.for_:
        return replace(known, state=FIRING, firing_since=wall)
    return known


def _quiet(rule: Rule, known: Alert, at: float, wall: float) -> Alert | None:
    """What becomes of an alert whose expression is not true: None when nothing is left of it."""
    if known.state == PENDING:
        return None
    quiet_since = at if known.quiet_since is None else known.quiet_since
    quiet = at - quiet_since
    if known.state == RESOLVED:
        return known if quiet <= rule.keep_firing_for + RESOLVED_FOR else None
    if quiet < rule.keep_firing_for:
        return known if known.quiet_since is not None else replace(known, quiet_since=quiet_since)
    return replace(known, state=RESOLVED, quiet_since=quiet_since, resolved_at=wall)
