"""Errors of GPUs and NVSwitches in the Report: counters, and the events that stand on record. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from gpumon import inventory
from gpumon.arrival import Errors, Remembered
from gpumon.report import Counted, Memory, Report
from gpumon.snapshot.burst import CANCELLED_BY, SXID, UNNAMED, XID, Burst, Change
from gpumon.snapshot.gpu import Gpu
from gpumon.snapshot.reading import Sample

MOST_EVENTS = 500
"""Events that the Report holds; the store knows more."""
PAST, STEP = 3600.0, 15.0
"""Seconds to look back on after a start, and between two points of it."""
XIDS = f"{Gpu.PREFIX}xid_errors_total"


def take(report: Report, told: Errors) -> Report:
    """Count what was gained, and put each burst in the place of its older state."""
    memory = report.memory
    counted = {XID: memory.xids, SXID: memory.sxids}
    for kind, before in counted.items():
        counted[kind] = _counted(before, (change for change in told.changes if change.burst.kind == kind))
    memory = replace(memory, xids=counted[XID], sxids=counted[SXID])
    return replace(report, memory=memory, events=_events(report.events, [change.burst for change in told.changes]))


def recall(report: Report, remembered: Remembered) -> Report:
    """What the store knew, and what was told before it could be read."""
    memory = report.memory
    counted = {XID: _copied(memory.xids), SXID: _copied(memory.sxids)}
    for one in remembered.counters:
        device = one.device.lower() if one.device.startswith(UNNAMED) else one.device
        codes = counted[one.kind].setdefault(device, {})
        meanwhile, later = codes.get(str(one.code), (0.0, 0.0))
        codes[str(one.code)] = (one.count + meanwhile, max(one.last_wall, later))
    boards = {board.bus_id: board for board in remembered.boards}
    memory = replace(
        memory,
        xids=counted[XID],
        sxids=counted[SXID],
        boards=boards,
        inventory=inventory.recall(memory.inventory, boards),
        recalled=True,
    )
    return replace(report, memory=memory, events=_events(remembered.events, report.events))


def nvswitch_errors(memory: Memory) -> dict[str, float] | None:
    """By nvswitch and sxid."""
    counts = {f"{switch},{code}": count for switch, codes in memory.sxids.items() for code, (count, _) in codes.items()}
    return counts or None


def past(now: float) -> Iterator[float]:
    """Moments of the boot clock from an hour ago until just now."""
    for step in range(int(PAST / STEP), 0, -1):
        yield now - step * STEP


def xids_at(report: Report, wall: float) -> Iterator[Sample]:
    """The Xid counters as they stood then: today's, less what came after.

    Of a burst that had begun by then and went on, all but the first came after: only its ends are known.
    """
    later: dict[tuple[str, str], int] = {}
    for event in report.events:
        if event.kind == XID and event.last_wall > wall and not event.historical:
            key = (event.device, str(event.code))
            later[key] = later.get(key, 0) + event.count - (event.first_wall <= wall)
    for state in report.gpus:
        for xid, count in (state.gpu.xid_errors_total or {}).items():
            yield Sample(XIDS, (*state.labels, ("xid", xid)), max(0.0, count - later.get((state.uuid, xid), 0)))


def _copied(counted: Counted) -> dict[str, dict[str, tuple[float, float]]]:
    return {device: dict(codes) for device, codes in counted.items()}


def _counted(before: Counted, changes: Iterable[Change]) -> Counted:
    gained = [change for change in changes if change.gained]
    if not gained:
        return before
    after = _copied(before)
    for change in gained:
        burst = change.burst
        codes = after.setdefault(burst.device, {})
        count, last = codes.get(str(burst.code), (0.0, 0.0))
        codes[str(burst.code)] = (count + change.gained, max(last, burst.last_wall))
    return after


def _events(before: Sequence[Burst], newer: Sequence[Burst]) -> tuple[Burst, ...]:
    by_id = {burst.id: burst for burst in (*before, *newer)}
    kept = sorted(by_id.values(), key=lambda burst: burst.last_wall)[-MOST_EVENTS:]
    return tuple(_cancelled(burst, kept) for burst in kept)


def _cancelled(burst: Burst, events: Sequence[Burst]) -> Burst:
    """The same, knowing when another Xid of its GPU said that it is over."""
    by = CANCELLED_BY.get(burst.code) if burst.kind == XID else None
    if by is None:
        return burst
    ends = (
        other.last_wall
        for other in events
        if (other.kind, other.code, other.bus_id) == (XID, by, burst.bus_id) and other.last_wall >= burst.last_wall
    )
    return replace(burst, cancelled_wall=min(ends, default=None))
