"""Errors of GPUs and NVSwitches in the Report: counters, and the events that stand on record. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpumon.model.error_event import CANCELLED_BY, SXID, UNNAMED, XID, ErrorChange, ErrorEvent
from gpumon.state import expected_gpus
from gpumon.state.messages import ErrorChanges, StoredState
from gpumon.state.report import Counted, InternalState, Report

MOST_EVENTS = 500
"""Events that the Report holds; the store knows more."""


def take(report: Report, told: ErrorChanges) -> Report:
    """Count what was gained, and put each burst in the place of its older state."""
    memory = report.internal
    counted = {XID: memory.xids, SXID: memory.sxids}
    for kind, before in counted.items():
        counted[kind] = _counted(before, (change for change in told.changes if change.event.kind == kind))
    memory = replace(memory, xids=counted[XID], sxids=counted[SXID])
    return replace(report, internal=memory, events=_events(report.events, [change.event for change in told.changes]))


def recall(report: Report, remembered: StoredState) -> Report:
    """What the store knew, and what was told before it could be read."""
    memory = report.internal
    counted = {XID: _copied(memory.xids), SXID: _copied(memory.sxids)}
    for one in remembered.counters:
        device = one.device.lower() if one.device.startswith(UNNAMED) else one.device
        codes = counted[one.kind].setdefault(device, {})
        meanwhile, later = codes.get(str(one.code), (0.0, 0.0))
        codes[str(one.code)] = (one.count + meanwhile, max(one.last_wall, later))
    memory = expected_gpus.recalled(memory, remembered, report.boot_id)
    memory = replace(memory, xids=counted[XID], sxids=counted[SXID], recalled=True)
    return replace(report, internal=memory, events=_events(remembered.events, report.events))


def nvswitch_errors(memory: InternalState) -> dict[str, float] | None:
    """By nvswitch and sxid."""
    counts = {f"{switch},{code}": count for switch, codes in memory.sxids.items() for code, (count, _) in codes.items()}
    return counts or None


def _copied(counted: Counted) -> dict[str, dict[str, tuple[float, float]]]:
    return {device: dict(codes) for device, codes in counted.items()}


def _counted(before: Counted, changes: Iterable[ErrorChange]) -> Counted:
    gained = [change for change in changes if change.gained]
    if not gained:
        return before
    after = _copied(before)
    for change in gained:
        event = change.event
        codes = after.setdefault(event.device, {})
        count, last = codes.get(str(event.code), (0.0, 0.0))
        codes[str(event.code)] = (count + change.gained, max(last, event.last_wall))
    return after


def _events(before: Sequence[ErrorEvent], newer: Sequence[ErrorEvent]) -> tuple[ErrorEvent, ...]:
    by_id = {event.id: event for event in (*before, *newer)}
    kept = sorted(by_id.values(), key=lambda event: event.last_wall)[-MOST_EVENTS:]
    return tuple(_cancelled(event, kept) for event in kept)


def _cancelled(event: ErrorEvent, events: Sequence[ErrorEvent]) -> ErrorEvent:
    """The same, knowing when another Xid of its GPU said that it is over."""
    by = CANCELLED_BY.get(event.code) if event.kind == XID else None
    if by is None:
        return event
    ends = (
        other.last_wall
        for other in events
        if (other.kind, other.code, other.bus_id) == (XID, by, event.bus_id) and other.last_wall >= event.last_wall
    )
    return replace(event, cancelled_wall=min(ends, default=None))
