"""What the log says of the node: each change once, the recovery as well as the failure. Pure."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpumon.alerts.alert import FIRING, SEVERITIES, Alert
from gpumon.report import GpuState, Report
from gpumon.snapshot.burst import SXID, XID


@dataclass(frozen=True, slots=True)
class Change:
    """A line for the log."""

    level: int
    message: str
    words: Mapping[str, object]


_LEVELS = dict(zip(SEVERITIES, (logging.ERROR, logging.WARNING, logging.INFO), strict=True))


def changes(before: Report, after: Report) -> Iterator[Change]:
    """What an operator would want to have been told between these two."""
    if before.memory.status != after.memory.status:
        yield from _driver(after)
    if before.gpus is not after.gpus:
        known = {state.bus_id: state for state in before.gpus}
        for state in after.gpus:
            yield from _gpu(known.get(state.bus_id), state)
    if before.events is not after.events and before.memory.recalled is after.memory.recalled:
        yield from _errors(before, after)
    if before.alerts is not after.alerts:
        yield from _alerts(before, after)


def _driver(report: Report) -> Iterator[Change]:
    status = report.memory.status
    if status is not None and status.up:
        yield Change(logging.INFO, "the driver answers", {"driver": status.driver, "nvml": status.nvml})
    elif status is not None:
        level = logging.INFO if report.node.nvml_up is None else logging.ERROR
        yield Change(level, "no driver to read", {"error": status.error, "remedy": status.remedy})


def _gpu(before: GpuState | None, after: GpuState) -> Iterator[Change]:
    if (before.fault if before else None) == after.fault:
        return
    words = {"gpu": after.index, "uuid": after.uuid, "pci_bus_id": after.bus_id}
    if after.fault is None:
        yield Change(logging.WARNING, "the GPU answers again", words)
    else:
        yield Change(logging.ERROR, "the GPU does not answer", words | {"fault": after.fault, "detail": after.detail})


def _errors(before: Report, after: Report) -> Iterator[Change]:
    """Each burst once, when it begins."""
    told = {event.id for event in before.events}
    for event in after.events:
        if event.id not in told and not event.historical:
            means = after.catalogue.explain(event)
            number = {XID: f"Xid {event.code}: ", SXID: f"SXid {event.code}: "}.get(event.kind, "")
            words = {"uuid": event.uuid, "pci_bus_id": event.bus_id, "action": means.action, "text": event.text}
            told_words = {name: word for name, word in words.items() if word}
            yield Change(_LEVELS[means.severity], f"{number}{means.name}", told_words)


def _alerts(before: Report, after: Report) -> Iterator[Change]:
    fired = {alert.identity for alert in before.alerts if alert.state == FIRING}
    firing = {alert.identity for alert in after.alerts if alert.state == FIRING}
    for alert in after.alerts:
        if alert.state == FIRING and alert.identity not in fired:
            yield Change(_LEVELS[alert.severity], f"alert firing: {alert.summary}", _words(alert))
        elif alert.identity in fired and alert.identity not in firing:
            yield Change(logging.INFO, f"alert resolved: {alert.summary}", _words(alert))


def _words(alert: Alert) -> Mapping[str, object]:
    return {"rule": alert.rule, "severity": alert.severity, **{f"label_{name}": value for name, value in alert.labels}}
