"""Groups errors that NVML and the kernel log report into events, and records each change of an event.

NVML may report an Xid sooner than the kernel log, but without its text, which decides how severe some Xids are. The
kernel log also has the errors that occurred while no agent ran.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from gpumon.clock import boot_clock
from gpumon.collectors.kernel_log.watch import KernelLog, KernelLogWatch
from gpumon.model.error_event import (
    KMSG,
    UNNAMED,
    XID,
    ErrorChange,
    ErrorEvent,
    ErrorObservation,
    LogPosition,
)
from gpumon.services.write_behind import PATIENCE_SECONDS, WriteBehind
from gpumon.state.event_grouping import EventGrouper
from gpumon.state.messages import ErrorChanges, StoredState
from gpumon.state.report import Report
from gpumon.supervisor.loop import Loop

log = logging.getLogger("gpumon.services.event_recorder")

READ_SECONDS = 1.0
"""Interval in seconds at which the kernel log is read, or its opening retried, in addition to reads on new messages."""
UPDATE_SECONDS = 1.0
"""Seconds for which further errors of a recorded event are collected before they are recorded, as one change."""
TEXT_SECONDS = 0.3
"""Seconds for which an Xid that NVML reported waits for its line in the kernel log."""
POSITION_SECONDS = 60.0
"""Interval in seconds at which the position in the kernel log is stored, if the position has changed."""
RECENT_SECONDS = 60.0
"""Maximum age in seconds of an Xid in the kernel log for which `on_xid` is called."""
WITNESS_SECONDS = 60.0
"""Maximum seconds to wait until NVML confirms that a GPU is lost, if a kernel message without an Xid reports that."""
UNNUMBERED_XID = 999
"""Code that NVML reports for an error whose Xid it cannot identify. The kernel log has the Xid of that error."""


class EventRecorder:
    """Service that records Xids and other errors as events. Use from the loop's thread."""

    def __init__(
        self,
        loop: Loop,
        writes: WriteBehind,
        kernel_log: Path | None,
        boot_id: str,
        *,
        latest: Callable[[], Report],
        on_xid: Callable[[str, int], None] = lambda _bus_id, _xid: None,
        is_own: Callable[[ErrorObservation], bool] = lambda _: False,
    ) -> None:
        """Create the service. `on_xid` is called with the bus id and the code of each recent Xid in the kernel log.

        `kernel_log`: path of /dev/kmsg or a file like it; None to read only NVML. `is_own` returns True for an error
        that the agent itself caused by killing a rank of a probe. Such an error is ignored: it is not recorded, and
        `on_xid` is not called.
        """
        self._loop = loop
        self._writes = writes
        self._latest = latest
        self._on_xid = on_xid
        self._is_own = is_own
        self._watch = KernelLogWatch(kernel_log, boot_id)
        self._grouper = EventGrouper(boot_id)
        self._early: list[ErrorObservation] | None = []
        """Observations that wait until the stored events have been read or PATIENCE_SECONDS have passed; None after
        that.
        """
        self._textless: list[ErrorObservation] = []
        """Xids that NVML reported at most TEXT_SECONDS ago, the oldest first."""
        self._unconfirmed: dict[tuple[str, int], tuple[ErrorObservation, float]] = {}
        """Errors without an Xid that NVML has not confirmed yet, and the boot clock when they were read; by bus id and
        code.
        """
        self._changed: dict[str, ErrorEvent] = {}
        """Events that have changed since they were last submitted to the store, by event id."""
        self._counted: dict[str, int] = {}
        """Number of errors of each event as last submitted to the store, by event id."""
        self._position: LogPosition | None = None
        """Position in the kernel log as last submitted to the store."""
        self._in_flight = False
        self._update_scheduled = False
        self._read_scheduled = False
        self._descriptor: int | None = None

    @property
    def log(self) -> KernelLog:
        """Return the reader of the kernel log."""
        return self._watch.log

    def start(self) -> None:
        """Start reading the kernel log when the stored events have been read, at the latest after PATIENCE_SECONDS."""
        self._loop.call_after(PATIENCE_SECONDS, self._begin)
        self._loop.every(READ_SECONDS, self._read)
        self._loop.every(POSITION_SECONDS, self._clean_up)

    def restore(self, stored: StoredState) -> None:
        """Continue the stored events of this boot, and read the kernel log from the stored position."""
        self._grouper.restore(stored.events)
        self._counted = {event.id: event.count for event in stored.events} | self._counted
        self._position = stored.position
        self._add(self._watch.resume(stored.position))
        self._begin()
        self._record(at_once=True)

    def add_nvml_event(self, xid: ErrorObservation) -> None:
        """Add an Xid of NVML, after its line in the kernel log, which also has the actual Xid of code 999."""
        if not self._watch.log.up:
            self._add((xid,))
        elif xid.code != UNNUMBERED_XID:
            self._textless.append(xid)
            self._loop.call_after(TEXT_SECONDS, self._add_textless)

    def _add_textless(self) -> None:
        self._read()
        textless, self._textless = self._textless[:1], self._textless[1:]
        self._add(textless)

    def stop(self) -> None:
        """Submit the changed events and the position in the kernel log to the store, and close the kernel log."""
        textless, self._textless = self._textless, []
        self._add(textless)
        self._in_flight = False  # the store writes in order, so an earlier batch is stored before the one submitted now
        self._record(at_once=True)
        self._watch.close()

    # The kernel log

    def _begin(self) -> None:
        early, self._early = self._early, None
        self._watch.begin()
        self._add(early or ())
        self._read()

    def _read(self) -> None:
        self._add(self._watch.read())
        descriptor = self._watch.log.fileno()
        if descriptor != self._descriptor:
            if self._descriptor is not None:
                self._loop.unwatch(self._descriptor)
            if descriptor is not None:
                self._loop.watch(descriptor, self._read)
            self._descriptor = descriptor
        if self.log.more and descriptor is None and not self._read_scheduled:
            self._read_scheduled = True
            self._loop.call_after(0.0, self._read_more)

    def _read_more(self) -> None:
        self._read_scheduled = False
        self._read()

    def _clean_up(self) -> None:
        continuing = self._grouper.end(boot_clock())
        self._counted = {
            event: count for event, count in self._counted.items() if event in continuing or event in self._changed
        }
        self._record(at_once=True)

    # From observations to recorded events

    def _add(self, observations: Sequence[ErrorObservation]) -> None:
        """Add the observations to events, and those without an Xid when NVML has confirmed them."""
        if self._early is not None:
            self._early += observations
            return
        now = boot_clock()
        self._unconfirmed |= {(each.bus_id, each.code): (each, now) for each in observations if not each.numbered}
        certain = (*[each for each in observations if each.numbered], *self._confirmed(now))
        certain = tuple(each for each in map(self._with_uuid, certain) if not self._is_own(each))
        events = [self._grouper.add(observation) for observation in certain]
        self._changed |= {event.id: event for event in events}
        self._record()
        for each in certain:
            is_logged_xid = each.source == KMSG and each.kind == XID and not each.historical
            if is_logged_xid and boot_clock() - each.at < RECENT_SECONDS:
                self._on_xid(each.bus_id, each.code)

    def _confirmed(self, now: float) -> Iterator[ErrorObservation]:
        """Yield each error without an Xid that NVML confirms. Drop one not confirmed after WITNESS_SECONDS.

        Such an error reports that a GPU is lost. NVML confirms this if it does not list the GPU, or cannot read it for
        another reason than missing permission.
        """
        for key, (observation, since) in tuple(self._unconfirmed.items()):
            latest = self._latest()
            gpu = latest.inventory.gpus.get(observation.bus_id)
            is_unlisted = gpu is None and observation.bus_id in latest.expectation.unlisted
            if is_unlisted or (gpu is not None and gpu.fault not in (None, "no_permission")):
                del self._unconfirmed[key]
                yield observation
            elif now - since > WITNESS_SECONDS:
                del self._unconfirmed[key]
                log.warning(
                    "ignored a kernel message without an Xid, because NVML does not report the GPU as lost",
                    extra={"pci_bus_id": observation.bus_id, "text": observation.text},
                )

    def _with_uuid(self, observation: ErrorObservation) -> ErrorObservation:
        """Return the observation; an Xid without a uuid gets that of the GPU at its bus id, as read or else stored."""
        if observation.kind != XID or observation.uuid is not None:
            return observation
        inventory = self._latest().inventory
        gpu, stored = inventory.gpus.get(observation.bus_id), inventory.stored.get(observation.bus_id)
        if gpu is not None and not gpu.uuid.startswith(UNNAMED):
            return replace(observation, uuid=gpu.uuid)
        return replace(observation, uuid=stored.uuid) if stored is not None else observation

    def _record(self, *, at_once: bool = False) -> None:
        """Submit the changed events and the log position to the store, as one batch.

        If no event is new, wait UPDATE_SECONDS for further changes, unless `at_once`. Do nothing while an earlier batch
        is being stored, whose end calls this method again.
        """
        has_moved = self._watch.position not in (None, self._position)
        if self._in_flight or not (self._changed or (at_once and has_moved)):
            return
        if not at_once and self._changed.keys() <= self._counted.keys():
            if not self._update_scheduled:
                self._update_scheduled = True
                self._loop.call_after(UPDATE_SECONDS, self._update)
            return
        events, self._changed = self._changed.values(), {}
        changes = tuple(
            ErrorChange(event, 0 if event.historical else event.count - self._counted.get(event.id, 0))
            for event in events
        )
        self._counted |= {change.event.id: change.event.count for change in changes}
        self._position = self._watch.position
        self._in_flight = True
        self._writes.record(ErrorChanges(changes=changes, position=self._position), self._settle)

    def _settle(self, _: object) -> None:
        self._in_flight = False
        self._record()

    def _update(self) -> None:
        self._update_scheduled = False
        self._record(at_once=True)
