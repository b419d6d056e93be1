"""`reduce`, the only function that changes the state of the agent: it returns the next Report for a message. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from gpumon.health.alert import RESOLVED
from gpumon.model.instant import Now
from gpumon.state import health_section
from gpumon.state.messages import ErrorChanges, Message, Tick
from gpumon.state.report import Report
from gpumon.state.section import ReducerSettings, Step
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
        report = health_section.evaluate(report, now, settings)
        report = _with_node(report, exposed_series=float(series_count(report)))
    if report.health is before.health:
        return report
    alerts = (f"{each.rule},{each.severity},{each.state}" for each in report.alerts if each.state != RESOLVED)
    return _with_node(report, alerts={key: float(count) for key, count in Counter(alerts).items()})


def _may_start_verdict(before: Report, report: Report, message: Message) -> bool:
    """Return whether the message has an error event, or changed the fault of a GPU.

    False before the first evaluation, which waits until all sources have been read.
    """
    if not report.health.evaluated:
        return False
    if isinstance(message, ErrorChanges):
        return bool(message.changes)
    if report.gpus is before.gpus:
        return False
    old, new = ({state.uuid: state.fault for state in each.gpus} for each in (before, report))
    return old != new


def _with_node(report: Report, **rows: object) -> Report:
    node = replace(report.node, **rows)  # type: ignore[arg-type]
    return replace(report, agent=replace(report.agent, node=node))
