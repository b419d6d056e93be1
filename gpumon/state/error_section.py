"""The section `errors`: errors of GPUs and NVSwitches, counted by device and code, and the last error events. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpumon.model.error_event import CANCELLED_BY, SXID, UNNAMED, XID, ErrorChange, ErrorEvent
from gpumon.state.messages import ErrorChanges, StoredState
from gpumon.state.report import Counted, Errors, Report
from gpumon.state.section import LOG_LEVELS, LogLine, Step

MAX_EVENTS = 500
"""Maximum number of error events in the Report. The store keeps more."""


def apply(errors: Errors, step: Step) -> Errors:
    """Return the errors after a message."""
    match step.message:
        case ErrorChanges(changes=changes, position=position):
            errors = replace(_add(errors, changes), position=position or errors.position)
        case StoredState():
            errors = _restore(errors, step.message)
    return replace(errors, catalogue=step.settings.catalogue)


def _add(errors: Errors, changes: Sequence[ErrorChange]) -> Errors:
    counted = {XID: errors.xids, SXID: errors.sxids}
    for change in changes:
        event = change.event
        if change.increase and event.kind in counted:
            code, wall = str(event.code), event.last.wall
            counted[event.kind] = _count(counted[event.kind], event.device, code, change.increase, wall)
    events = _events(errors.events, [change.event for change in changes])
    return replace(errors, xids=counted[XID], sxids=counted[SXID], events=events)


def _restore(errors: Errors, stored: StoredState) -> Errors:
    counted = {XID: errors.xids, SXID: errors.sxids}
    for row in stored.counters:
        device = row.device.lower() if row.device.startswith(UNNAMED) else row.device
        counted[row.kind] = _count(counted[row.kind], device, str(row.code), row.count, row.last_wall)
    events = _events(stored.events, errors.events)
    position = errors.position or stored.position
    return replace(errors, xids=counted[XID], sxids=counted[SXID], events=events, position=position)


def _count(counted: Counted, device: str, code: str, increase: int, wall: float) -> Counted:
    codes = counted.get(device, {})
    count, last = codes.get(code, (0.0, 0.0))
    return {**counted, device: {**codes, code: (count + increase, max(last, wall))}}


def _events(before: Sequence[ErrorEvent], newer: Sequence[ErrorEvent]) -> tuple[ErrorEvent, ...]:
    by_id = {event.id: event for event in (*before, *newer)}
    last = sorted(by_id.values(), key=lambda event: event.last.wall)[-MAX_EVENTS:]
    return tuple(_cancel(event, last) for event in last)


def _cancel(event: ErrorEvent, events: Sequence[ErrorEvent]) -> ErrorEvent:
    """Return the event with `cancelled_wall` set if a later Xid of the same GPU reported the end of this error."""
    by = CANCELLED_BY.get(event.code) if event.kind == XID else None
    if by is None:
        return event
    ends = (
        other.last.wall
        for other in events
        if (other.kind, other.code, other.bus_id) == (XID, by, event.bus_id) and other.last.wall >= event.last.wall
    )
    return replace(event, cancelled_wall=min(ends, default=None))


def changes(before: Report, after: Report) -> Iterator[LogLine]:
    """Yield a line for each new error event, unless it is from before the first start of the agent on this host."""
    if before.events is after.events or before.agent.restored is not after.agent.restored:
        return
    previous = {event.id for event in before.events}
    for event in after.events:
        if event.id not in previous and not event.historical:
            means = after.catalogue.explain(event)
            number = {XID: f"Xid {event.code}: ", SXID: f"SXid {event.code}: "}.get(event.kind, "")
            words = {"uuid": event.uuid, "pci_bus_id": event.bus_id, "action": means.action, "text": event.text}
            fields = {name: word for name, word in words.items() if word}
            yield LogLine(LOG_LEVELS[means.severity], f"{number}{means.name}", fields)
