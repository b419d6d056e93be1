"""Updates the errors of GPUs and NVSwitches in the Report: counters by device and code, and the last events. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpumon.model.error_event import CANCELLED_BY, SXID, UNNAMED, XID, ErrorChange, ErrorEvent
from gpumon.state.messages import ErrorChanges, StoredState
from gpumon.state.report import Counted, InternalState, Report

MAX_EVENTS = 500
"""Maximum number of error events in the Report. The store keeps more."""


def take(report: Report, message: ErrorChanges) -> Report:
    """Return the Report after new errors, with counters increased and with new and changed events."""
    internal = report.internal
    counted = {XID: internal.xids, SXID: internal.sxids}
    for kind, before in counted.items():
        counted[kind] = _add(before, (change for change in message.changes if change.event.kind == kind))
    internal = replace(internal, xids=counted[XID], sxids=counted[SXID])
    return replace(
        report, internal=internal, events=_events(report.events, [change.event for change in message.changes])
    )


def restore(report: Report, stored: StoredState) -> Report:
    """Return the Report with the stored counters and events added to those of errors since the start of the agent."""
    internal = report.internal
    counted = {XID: _copy(internal.xids), SXID: _copy(internal.sxids)}
    for row in stored.counters:
        device = row.device.lower() if row.device.startswith(UNNAMED) else row.device
        codes = counted[row.kind].setdefault(device, {})
        meanwhile, later = codes.get(str(row.code), (0.0, 0.0))
        codes[str(row.code)] = (row.count + meanwhile, max(row.last_wall, later))
    internal = replace(internal, xids=counted[XID], sxids=counted[SXID])
    return replace(report, internal=internal, events=_events(stored.events, report.events))


def nvswitch_errors(internal: InternalState) -> dict[str, float] | None:
    """Return the number of errors by "nvswitch,sxid" (PCI address and code); None if there are no SXid errors."""
    counts = {
        f"{switch},{code}": count for switch, codes in internal.sxids.items() for code, (count, _) in codes.items()
    }
    return counts or None


def _copy(counted: Counted) -> dict[str, dict[str, tuple[float, float]]]:
    return {device: dict(codes) for device, codes in counted.items()}


def _add(before: Counted, changes: Iterable[ErrorChange]) -> Counted:
    increases = [change for change in changes if change.increase]
    if not increases:
        return before
    after = _copy(before)
    for change in increases:
        event = change.event
        codes = after.setdefault(event.device, {})
        count, last = codes.get(str(event.code), (0.0, 0.0))
        codes[str(event.code)] = (count + change.increase, max(last, event.last_wall))
    return after


def _events(before: Sequence[ErrorEvent], newer: Sequence[ErrorEvent]) -> tuple[ErrorEvent, ...]:
    by_id = {event.id: event for event in (*before, *newer)}
    last = sorted(by_id.values(), key=lambda event: event.last_wall)[-MAX_EVENTS:]
    return tuple(_cancel(event, last) for event in last)


def _cancel(event: ErrorEvent, events: Sequence[ErrorEvent]) -> ErrorEvent:
    """Return the event with `cancelled_wall` set if a later Xid of the same GPU reported the end of this error."""
    by = CANCELLED_BY.get(event.code) if event.kind == XID else None
    if by is None:
        return event
    ends = (
        other.last_wall
        for other in events
        if (other.kind, other.code, other.bus_id) == (XID, by, event.bus_id) and other.last_wall >= event.last_wall
    )
    return replace(event, cancelled_wall=min(ends, default=None))
