"""`reduce`, the only function that changes the state of the agent: it returns the next Report for a message. Pure."""

from __future__ import annotations

from dataclasses import replace

from gpumon.health.alert import RESOLVED
from gpumon.model.instant import Now
from gpumon.state import health_section
from gpumon.state.messages import ErrorChanges, Message, Tick
from gpumon.state.reducer_settings import ReducerSettings
from gpumon.state.report import Report
from gpumon.state.section import Step
from gpumon.state.sections import SECTIONS, samples, series_count


def reduce(report: Report, message: Message, now: Now, settings: ReducerSettings) -> Report:
    """Return the Report after this message was applied to each section.

    Checks are evaluated at each Tick, and at once after a message that may start a verdict (`_may_start_verdict`).
    """
    before = report
    for section in SECTIONS:
        step = Step(message=message, now=now, settings=settings, report=report)
        state = getattr(report, section.name)
        after = section.apply(state, step)
        if after is not state:
            report = replace(report, **{section.name: after})
    if isinstance(message, Tick):
        history = report.samples
        report = replace(report, samples=history.add(samples(report, frozenset(history.windows)), now.at))
    if isinstance(message, Tick) or _may_start_verdict(before, report, message):
        report = _evaluate_checks(report, now, settings)
    return report if report.health is before.health else _with_alert_counts(report)


def _may_start_verdict(before: Report, report: Report, message: Message) -> bool:
    """Return whether the message has an error event, or changed the fault of a GPU.

    False before the first evaluation, which waits until all sources have been read.
    """
    if not report.health.evaluated:
        return False
    if isinstance(message, ErrorChanges):
        return bool(message.changes)
    return report.gpus is not before.gpus and _faults(report) != _faults(before)


def _faults(report: Report) -> dict[str, str | None]:
    return {state.uuid: state.fault for state in report.gpus}


def _evaluate_checks(report: Report, now: Now, settings: ReducerSettings) -> Report:
    report = health_section.evaluate(report, now, settings)
    return _with_node(report, exposed_series=float(series_count(report)))


def _with_node(report: Report, **rows: object) -> Report:
    node = replace(report.node, **rows)  # type: ignore[arg-type]
    return replace(report, agent=replace(report.agent, node=node))


def _with_alert_counts(report: Report) -> Report:
    counts: dict[str, float] = {}
    for alert in report.alerts:
        if alert.state != RESOLVED:
            key = f"{alert.rule},{alert.severity},{alert.state}"
            counts[key] = counts.get(key, 0.0) + 1
    return _with_node(report, alerts=counts)
