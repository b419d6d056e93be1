"""Between the main loop and the store: what must survive is durable before it is folded, unless the disk fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from gpumon.health.agent_runs import AgentRun
from gpumon.health.pending_verdicts import PendingVerdict, waited
from gpumon.health.standing import kept
from gpumon.health.verdict import Key, Verdict, VerdictTransition
from gpumon.model.error_event import SXID, XID, ErrorChange, ErrorEvent, LogPosition
from gpumon.model.maintenance import Maintenance, MaintenanceEnded
from gpumon.model.time_window import Span
from gpumon.probe.core.result import ProbeResult, to_document
from gpumon.probe.core.state import MOST_RESULTS
from gpumon.services.gpu_persistence import KeptBoards
from gpumon.services.port_persistence import KeptPorts
from gpumon.services.restore import recall
from gpumon.services.window_persistence import KeptSpans
from gpumon.state.error_counters import MAX_EVENTS
from gpumon.state.messages import Acceptance, ErrorChanges, ProbeEnded, StoredState, VerdictTransitions
from gpumon.state.report import Report
from gpumon.store.errors import StoreError
from gpumon.store.events import ErrorCounter, EventQuery, StoredEvent
from gpumon.store.runs import RunPage, RunQuery
from gpumon.store.store import Retention, Store
from gpumon.store.writer import Writer
from gpumon.supervisor.loop import Loop

T = TypeVar("T")

log = logging.getLogger("gpumon.store")

PATIENCE_SECONDS = 5.0
"""How long a fault may wait for its durable row: a hung disk must not silence an alert."""
CLOSE_SECONDS = 3.0

Arrived = Acceptance | ErrorChanges | Maintenance | MaintenanceEnded | ProbeEnded | StoredState | VerdictTransitions


class Persistence:
    """Use from the loop's thread."""

    def __init__(
        self,
        loop: Loop,
        path: Path,
        retention: Retention,
        probe: str,
        *,
        take: Callable[[Arrived], None],
        latest: Callable[[], Report],
        on_recalled: Callable[[StoredState, LogPosition | None], None] = lambda _remembered, _position: None,
    ) -> None:
        """`on_recalled` is called once, when what the store knew has been told."""
        self._loop = loop
        self._path = path
        self._probe = probe
        self._take = take
        self._latest = latest
        self._on_recalled = on_recalled
        self._recalled = False
        self._failing = False
        self._unstored: dict[str, ProbeResult] = {}
        """Results that were told and, as far as is known, are not stored; by id."""
        self._unstored_events: dict[str, ErrorEvent] = {}
        """The same of errors."""
        self._verdicts_unstored = False
        """The store may not know all verdicts."""
        self._unstored_transitions: tuple[VerdictTransition, ...] = ()
        """What became of them, and is not stored, as far as is known."""
        self._transition = False
        """Rulings are on their way, and the Report does not know them yet."""
        self._touched: dict[Key, Verdict] = {}
        """Verdicts as they were last stored."""
        self._waiting: tuple[PendingVerdict, ...] | None = None
        """What waits to become a verdict, as it was last stored; None: nobody knows."""
        self._position: LogPosition | None = None
        """Up to where the kernel log has been told."""
        self._writer = Writer(path, retention=retention, post=loop.post, on_open=self._opened)
        self.boards = KeptBoards(self._writer)
        self.ports = KeptPorts(self._writer)
        self.spans = KeptSpans(self._writer)

    def start(self) -> None:
        """Open the store in its own thread, and recall what it knows."""
        self._writer.start()

    def tick(self) -> None:
        """Store what has changed in the inventory and the time windows."""
        report = self._latest()
        self.boards.keep(report)
        self.ports.keep(report)
        self.spans.keep((*report.maintenances, *report.holds))

    def stop(self) -> None:
        """Store the whole inventory and close the store."""
        self.boards.keep(self._latest(), all_of_them=True)
        self.ports.keep(self._latest(), all_of_them=True)
        self.close()

    def close(self) -> None:
        """Close the store, after what is waiting to be written."""
        if not self._writer.close(CLOSE_SECONDS):
            log.error(
                "the store did not close in time; what was still waiting is lost", extra={"path": str(self._path)}
            )

    @property
    def trouble(self) -> str | None:
        """Why nothing can be written now, in words."""
        error = self._writer.trouble()
        return None if error is None else str(error)

    @property
    def notice(self) -> str | None:
        """What an operator should know about the store, whether or not it can be written now."""
        aside = self._writer.moved_aside
        if aside is None:
            return self.trouble
        began = f"{self._path} was damaged and has been begun anew; the old file is {aside}"
        return f"{self.trouble}. {began}" if self.trouble else began

    def record_errors(
        self, changes: Sequence[ErrorChange], position: LogPosition | None, settled: Callable[[], None] = lambda: None
    ) -> None:
        """Store bursts as they are now, and how far the kernel log was read for them; then tell them.

        `settled` is called when they have been told.
        """

        def tell(_: object) -> None:
            self._position = position or self._position
            if changes:
                self._take(ErrorChanges(changes=tuple(changes)))
            settled()

        self._keep(
            lambda store: store.record(changes, position),
            tell,
            lambda: self._keep_bursts_for_later(change.event for change in changes),
        )

    def record_transitions(self, transitions: Sequence[VerdictTransition], settled: Callable[[bool], None]) -> None:
        """Store what became of verdicts, then tell it; one batch at a time.

        `settled` is called when it has been told, with whether it is stored.
        """
        self._transition = True

        def tell(stored: bool) -> None:  # noqa: FBT001 - _keep calls it so
            self._transition = False
            self._take(VerdictTransitions(transitions=tuple(transitions)))
            settled(stored)

        def keep_for_later() -> None:
            self._verdicts_unstored = True
            self._unstored_transitions = kept((*self._unstored_transitions, *transitions))

        self._keep(lambda store: store.rule(transitions), tell, keep_for_later)

    def touch_verdicts(self, report: Report) -> None:
        """Remember when each verdict was last so. Not while rulings are on their way: those know better."""
        known = report.health.open
        news = [one for key, one in known.items() if self._touched.get(key) != one]
        if news and not self._transition and not self._verdicts_unstored:
            self._touched = dict(known)
            self._writer.submit(lambda store: store.touch_verdicts(news), failed=self._touch_again)

    def _touch_again(self, _: StoreError) -> None:
        self._touched.clear()

    def keep_waiting(self, report: Report) -> None:
        """Remember what waits to become a verdict. Not before it is known what the life before has left."""
        known = tuple(waited(report.health, report.boot_id))
        if report.internal.restored and known != self._waiting:
            self._waiting = known
            self._writer.submit(lambda store: store.keep_waiting(known), failed=self._wait_again)

    def _wait_again(self, _: StoreError) -> None:
        self._waiting = None

    def put_agent_run(self, agent_run: AgentRun) -> None:
        """Remember that the agent runs, or how it ended. What is lost of it, the next minute brings again."""
        self._writer.submit(lambda store: store.put_agent_run(agent_run))

    def keep_maintenances(
        self, known: Sequence[Maintenance], told: Maintenance | MaintenanceEnded, settled: Callable[[bool], None]
    ) -> None:
        """Store maintenances as they are with this one begun or ended, then tell that.

        `settled` is called when it has been told, with whether it is stored.
        """

        def tell(stored: bool) -> None:  # noqa: FBT001 - _keep calls it so
            self._take(told)
            settled(stored)

        self.keep_spans(known, tell)

    def keep_spans(self, known: Sequence[Span], settled: Callable[[bool], None]) -> None:
        """Store maintenances or holds as they are. `settled` is called with whether they are stored."""
        self._keep(lambda store: store.keep_spans(known), settled)

    def keep_acceptance(self, told: Acceptance, done: Callable[[], None], failed: Callable[[StoreError], None]) -> None:
        """Store what a person accepted, then tell it; nothing is told that cannot be stored."""

        def stored(_: object) -> None:
            self._take(told)
            self.boards.expect_no_more(told.gone)
            done()

        self._writer.submit(lambda store: store.accept(told.count, told.gone, told.ports, told.slow), stored, failed)

    def find_events(self, query: EventQuery) -> Future[tuple[StoredEvent, ...]]:
        """From any thread. Raises StoreError in the future."""
        return self._found(lambda store: store.events(query))

    def find_runs(self, query: RunQuery) -> Future[RunPage]:
        """The same of the probes."""
        return self._found(lambda store: store.probe_runs(query))

    def _found(self, ask: Callable[[Store], T]) -> Future[T]:
        found: Future[T] = Future()
        found.set_running_or_notify_cancel()  # whoever waited no longer must not be told so
        self._writer.submit(ask, found.set_result, found.set_exception)
        return found

    def record_result(self, result: ProbeResult) -> None:
        """Store a result, then tell it."""
        ended = ProbeEnded(result=result)
        self._keep(_adding(result), lambda _: self._take(ended), lambda: self._keep_result_for_later(result))

    def _keep(
        self,
        work: Callable[[Store], Any],
        tell: Callable[[bool], None],
        keep_for_later: Callable[[], None] = lambda: None,
    ) -> None:
        """`tell` is called once, with whether it is stored; `keep_for_later` when, as far as is known, it is not."""
        waiting = True

        def end(*, stored: bool) -> None:
            nonlocal waiting
            if waiting:
                waiting = False
                late.cancel()
                tell(stored)
            if not stored:
                keep_for_later()

        def failed(error: StoreError) -> None:
            if not self._failing:
                log.error("not stored; counted in memory", extra={"error": str(error)})
            self._failing = True
            end(stored=False)

        def done(_: object) -> None:
            self._failing = False
            end(stored=True)
            self._store_what_waits()

        late = self._loop.call_after(PATIENCE_SECONDS, lambda: end(stored=False))
        self._writer.submit(work, done, failed)

    def _keep_result_for_later(self, result: ProbeResult) -> None:
        self._unstored[result.id] = result
        for oldest in list(self._unstored)[:-MOST_RESULTS]:
            del self._unstored[oldest]

    def _keep_bursts_for_later(self, events: Iterable[ErrorEvent]) -> None:
        """Of too many the oldest are given up; their counters are not."""
        self._unstored_events |= {event.id: event for event in events}
        for oldest in list(self._unstored_events)[:-MAX_EVENTS]:
            del self._unstored_events[oldest]

    def _store_what_waits(self) -> None:
        """Once the store can be written again. What was told already is not told again."""
        if self._unstored_events:
            self._writer.submit(self._restore)
        if self._verdicts_unstored and not self._transition:
            self._restore_verdicts()
        waiting, self._unstored = self._unstored, {}
        for result in waiting.values():
            self._resubmit(result)

    def _restore_verdicts(self) -> None:
        known, transitions = tuple(self._latest().health.open.values()), self._unstored_transitions
        self._verdicts_unstored, self._unstored_transitions = False, ()

        def lost(_: StoreError) -> None:
            self._verdicts_unstored = True
            self._unstored_transitions = kept((*transitions, *self._unstored_transitions))

        self._writer.submit(lambda store: store.restore_verdicts(known, transitions), failed=lost)

    def _begun_anew(self) -> None:
        """The store knows nothing: all that is known here is news to it."""
        health = self._latest().health
        self._verdicts_unstored = True
        self._unstored_transitions = (*health.cleared.values(), *health.history)
        self._waiting = None
        self.boards.begun_anew()
        self.ports.begun_anew()
        self.spans.begun_anew()

    def _resubmit(self, result: ProbeResult) -> None:
        self._writer.submit(_adding(result), failed=lambda _: self._keep_result_for_later(result))

    def _remember(self, remembered: StoredState, position: LogPosition | None) -> None:
        """What was told before the store could be read comes after what it knew."""
        self._take(remembered)
        self._position = self._position or position
        self.boards.recalled(remembered.gpus)
        self.ports.recalled(remembered.ports)
        self._on_recalled(remembered, position)
        for result in self._unstored.values():
            self._take(ProbeEnded(result=result))

    # In the writer's thread

    def _opened(self, store: Store) -> None:
        """The first time: recall. Whenever it can be written again: make good what was counted in memory."""
        if not self._recalled:
            self._recalled = True
            remembered, position = recall(store, self._probe), store.log_position()
            self._loop.post(lambda: self._remember(remembered, position))
        else:
            self._make_good(store, self._latest())
        self._loop.post(self._store_what_waits)

    def _restore(self, store: Store) -> None:
        """Bursts, counters and position as they were told."""
        events = dict(self._unstored_events)
        store.restore(events.values(), _counters(self._latest()), self._position)
        self._loop.post(lambda: self._stored(events))

    def _stored(self, events: Mapping[str, ErrorEvent]) -> None:
        for name, event in events.items():
            if self._unstored_events.get(name) == event:
                del self._unstored_events[name]

    def _make_good(self, store: Store, report: Report) -> None:
        if self._writer.other:
            self._unstored_events = {event.id: event for event in report.events} | self._unstored_events
        self._restore(store)
        if self._writer.other:  # damaged or deleted while we ran
            self._loop.post(self._begun_anew)
            _tell_anew(store, report)


def _tell_anew(store: Store, report: Report) -> None:
    """What nobody else tells a store that knows nothing."""
    for result in report.probe.known:
        store.add_probe_result(to_document(result))
    for agent_run in report.agent_runs:
        store.put_agent_run(agent_run)
    if report.internal.inventory.accepted:
        store.accept(report.internal.inventory.learned, ())


def _adding(result: ProbeResult) -> Callable[[Store], bool]:
    """One that is stored already is neither stored nor counted again."""
    return lambda store: store.add_probe_result(to_document(result))


def _counters(report: Report) -> list[ErrorCounter]:
    counted = {XID: report.internal.xids, SXID: report.internal.sxids}
    return [
        ErrorCounter(kind=kind, device=device, code=int(code), count=int(count), last_wall=last)
        for kind, devices in counted.items()
        for device, codes in devices.items()
        for code, (count, last) in codes.items()
    ]
