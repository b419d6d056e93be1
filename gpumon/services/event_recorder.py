"""Errors on their way from their sources to the store and the Report: merged into bursts, durable before they are told.

Both sources are always heard. NVML is quick and says no more than a number; the kernel log has the words, and what was
said while nobody listened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from gpumon.clock import boot_clock
from gpumon.collectors.kernel_log.reader import KernelLog
from gpumon.collectors.kernel_log.watch import KernelLogWatch
from gpumon.model.error_event import KMSG, NVML, UNNAMED, XID, ErrorChange, ErrorEvent, ErrorObservation, LogPosition
from gpumon.model.snapshot import XidEvent
from gpumon.services.persistence import PATIENCE_SECONDS, Persistence
from gpumon.state.event_grouping import EventGrouper
from gpumon.state.report import Report
from gpumon.supervisor.loop import Loop

READ_SECONDS = 1.0
"""How often a log is looked at that a selector cannot wait for, or that could not be opened."""
UPDATE_SECONDS = 1.0
"""How often a burst that goes on is stored: of a storm, what came since is one change."""
POSITION_SECONDS = 60.0
RECENT_SECONDS = 60.0
"""Age up to which an error says something about the GPU as it is now."""
NOT_NAMED = 999
"""NVML's number for an Xid that it has no number for. The kernel log has it."""


class EventRecorder:
    """Use from the loop's thread."""

    def __init__(
        self,
        loop: Loop,
        persistence: Persistence,
        kernel_log: Path | None,
        boot_id: str,
        *,
        latest: Callable[[], Report],
        on_xid: Callable[[str, int], None] = lambda _bus_id, _xid: None,
    ) -> None:
        """`on_xid` takes bus id and code of what the kernel log says just now."""
        self._loop = loop
        self._persistence = persistence
        self._latest = latest
        self._on_xid = on_xid
        self._watch = KernelLogWatch(kernel_log, boot_id, self._hear)
        self._grouper = EventGrouper(boot_id)
        self._waiting: list[ErrorObservation] | None = []
        """What came before it is known what was told; None once that is over."""
        self._changed: dict[str, ErrorEvent] = {}
        """Not told yet, by id."""
        self._told: dict[str, int] = {}
        """Counts that were told of bursts that may go on, by id."""
        self._kept: LogPosition | None = None
        self._under_way = False
        self._update_due = False
        self._read_due = False
        self._watched: int | None = None

    @property
    def log(self) -> KernelLog:
        """The kernel log that is read."""
        return self._watch.log

    def start(self) -> None:
        self._loop.call_after(PATIENCE_SECONDS, self._wait_no_more)
        self._loop.every(READ_SECONDS, self._read)
        self._loop.every(POSITION_SECONDS, self._housekeeping)

    def recalled(self, events: Iterable[ErrorEvent], told: LogPosition | None) -> None:
        """What an earlier life of the agent has told."""
        stored = tuple(events)
        self._grouper.recall(stored)
        self._told = {event.id: event.count for event in stored} | self._told
        self._kept = told
        self._watch.resume(told)
        self._wait_no_more()
        self._keep_position()

    def hear(self, event: XidEvent) -> None:
        """From NVML."""
        if event.xid == NOT_NAMED and self._watch.log.up:
            return
        observation = ErrorObservation(
            kind=XID,
            code=event.xid,
            bus_id=event.bus_id,
            at=event.at,
            since=event.at,
            wall=event.wall,
            source=NVML,
            uuid=event.uuid,
            gpu_instance_id=event.gpu_instance_id,
            compute_instance_id=event.compute_instance_id,
        )
        self._hear((observation,))

    def stop(self) -> None:
        """Hand over what is not stored yet."""
        self._under_way = False  # it comes before this in the store's queue
        self._flush(even_if_nothing=self._has_moved())
        self._watch.close()

    # The kernel log

    def _read(self) -> None:
        self._watch.read()
        descriptor = self._watch.log.fileno()
        if descriptor != self._watched:
            if self._watched is not None:
                self._loop.unwatch(self._watched)
            if descriptor is not None:
                self._loop.watch(descriptor, self._read)
            self._watched = descriptor
        if self.log.more and descriptor is None and not self._read_due:
            self._read_due = True
            self._loop.call_after(0.0, self._read_on)

    def _read_on(self) -> None:
        self._read_due = False
        self._read()

    def _housekeeping(self) -> None:
        going_on = self._grouper.end(boot_clock())
        self._told = {name: count for name, count in self._told.items() if name in going_on or name in self._changed}
        self._keep_position()

    def _keep_position(self) -> None:
        if self._has_moved():
            self._flush(even_if_nothing=True)

    def _has_moved(self) -> bool:
        return self._watch.position not in (None, self._kept)

    # From sightings to what is told

    def _wait_no_more(self) -> None:
        waiting, self._waiting = self._waiting, None
        self._watch.begin()
        if waiting:
            self._hear(waiting)
        self._read()

    def _hear(self, observations: Sequence[ErrorObservation]) -> None:
        if self._waiting is not None:
            self._waiting += observations
            return
        events = [self._grouper.add(self._named(one)) for one in observations]
        self._changed |= {event.id: event for event in events}
        if any(event.id not in self._told for event in events):
            self._flush()
        else:
            self._update_soon()
        for one in observations:
            if one.source == KMSG and one.kind == XID and not one.historical and boot_clock() - one.at < RECENT_SECONDS:
                self._on_xid(one.bus_id, one.code)

    def _named(self, seen: ErrorObservation) -> ErrorObservation:
        """With the uuid of the GPU at that address, even when it has not been seen since boot."""
        if seen.kind != XID or seen.uuid is not None:
            return seen
        inventory = self._latest().internal.inventory
        known, board = inventory.gpus.get(seen.bus_id), inventory.stored.get(seen.bus_id)
        if known is not None and not known.uuid.startswith(UNNAMED):
            return replace(seen, uuid=known.uuid)
        return replace(seen, uuid=board.uuid) if board is not None else seen

    def _update_soon(self) -> None:
        if not self._update_due:
            self._update_due = True
            self._loop.call_after(UPDATE_SECONDS, self._update)

    def _update(self) -> None:
        self._update_due = False
        self._flush()

    def _flush(self, *, even_if_nothing: bool = False) -> None:
        """One at a time: what changes while the disk is slow is one change."""
        if self._under_way or not (self._changed or even_if_nothing):
            return
        events, self._changed = self._changed.values(), {}
        changes = tuple(ErrorChange(event, self._gained(event)) for event in events)
        self._told |= {change.event.id: change.event.count for change in changes}
        self._kept = self._watch.position
        self._under_way = True
        self._persistence.record_errors(changes, self._kept, self._settled)

    def _gained(self, event: ErrorEvent) -> int:
        return 0 if event.historical else event.count - self._told.get(event.id, 0)

    def _settled(self) -> None:
        self._under_way = False
        if any(name not in self._told for name in self._changed):
            self._flush()
        elif self._changed:
            self._update_soon()
