"""Between the main loop and the store: what must survive is durable before it is folded, unless the disk fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpumon.arrival import Errors, ProbeEnded, Remembered
from gpumon.errors import MOST_EVENTS
from gpumon.fold import MOST_RESULTS
from gpumon.probe.result import SUCCESSES, ProbeResult, from_document, to_document
from gpumon.report import Report
from gpumon.snapshot.burst import SXID, UNNAMED, XID, Board, Burst, Change, LogPosition
from gpumon.store.errors import StoreError
from gpumon.store.events import ErrorCounter, EventQuery, StoredEvent
from gpumon.store.store import Retention, Store
from gpumon.store.writer import Writer
from gpumon.supervisor.loop import Loop

log = logging.getLogger("gpumon.store")

PATIENCE_SECONDS = 5.0
"""How long a fault may wait for its durable row: a hung disk must not silence an alert."""
CLOSE_SECONDS = 3.0
BOARD_SECONDS = 3600.0
"""How old what is stored of a GPU that answers may become."""

Arrived = Errors | ProbeEnded | Remembered


class Memories:
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
        on_recalled: Callable[[Remembered, LogPosition | None], None] = lambda _remembered, _position: None,
    ) -> None:
        """`on_recalled` is called once, when what the store knew has been told."""
        self._loop = loop
        self._path = path
        self._retention = retention
        self._probe = probe
        self._take = take
        self._latest = latest
        self._on_recalled = on_recalled
        self._recalled = False
        self._failing = False
        self._unstored: dict[str, ProbeResult] = {}
        """Results that were told and, as far as is known, are not stored; by id."""
        self._unstored_bursts: dict[str, Burst] = {}
        """The same of errors."""
        self._boards: dict[str, Board] = {}
        """Stored, or about to be; by uuid."""
        self._position: LogPosition | None = None
        """Up to where the kernel log has been told."""
        self._writer: Writer | None = None

    def start(self) -> None:
        """Open the store in its own thread, and recall what it knows."""
        self._writer = Writer(self._path, retention=self._retention, post=self._loop.post, on_open=self._opened)

    def close(self) -> None:
        if self._writer is not None and not self._writer.close(CLOSE_SECONDS):
            log.error(
                "the store did not close in time; what was still waiting is lost", extra={"path": str(self._path)}
            )

    @property
    def trouble(self) -> str | None:
        """Why nothing can be written now, in words."""
        error = None if self._writer is None else self._writer.trouble()
        return None if error is None else str(error)

    @property
    def notice(self) -> str | None:
        """What an operator should know about the store, whether or not it can be written now."""
        aside = None if self._writer is None else self._writer.moved_aside
        if aside is None:
            return self.trouble
        began = f"{self._path} was damaged and has been begun anew; the old file is {aside}"
        return f"{self.trouble}. {began}" if self.trouble else began

    def keep_errors(
        self, changes: Sequence[Change], position: LogPosition | None, settled: Callable[[], None] = lambda: None
    ) -> None:
        """Store bursts as they are now, and how far the kernel log was read for them; then tell them.

        `settled` is called when they have been told.
        """
        told = Errors(changes=tuple(changes))

        def tell(arrived: Arrived) -> None:
            self._position = position or self._position
            if changes:
                self._take(arrived)
            settled()

        self._submit(
            lambda store: store.record(changes, position),
            lambda _: told,
            told,
            lambda: self._keep_bursts_for_later(change.burst for change in changes),
            take=tell,
        )

    def keep_boards(self, report: Report, wall: float) -> None:
        """Remember the GPUs that answer, so that they can be named when they do not."""
        new = [board for board in _boards(report, wall) if self._is_news(board)]
        self._boards |= {board.uuid: board for board in new}
        if new and self._writer is not None:
            self._writer.submit(lambda store: store.keep_boards(new), lambda _: None, lambda _: self._forget(new))

    def _is_news(self, board: Board) -> bool:
        known = self._boards.get(board.uuid)
        same = known is not None and replace(known, first_wall=board.first_wall, last_wall=board.last_wall) == board
        return known is None or not same or board.last_wall - known.last_wall > BOARD_SECONDS

    def _forget(self, boards: Iterable[Board]) -> None:
        """Not stored: they are news again."""
        for board in boards:
            self._boards.pop(board.uuid, None)

    def find_events(self, query: EventQuery) -> Future[tuple[StoredEvent, ...]]:
        """From any thread. Raises StoreError in the future."""
        found: Future[tuple[StoredEvent, ...]] = Future()
        found.set_running_or_notify_cancel()  # whoever waited no longer must not be told so
        if self._writer is None:
            found.set_exception(StoreError(self._path, "it is not open", "try again"))
        else:
            self._writer.submit(lambda store: store.events(query), found.set_result, found.set_exception)
        return found

    def keep_result(self, result: ProbeResult) -> None:
        """Store a result, then tell it."""
        ended = ProbeEnded(result=result)
        self._submit(_adding(result), lambda _: ended, ended, lambda: self._keep_for_later(result))

    def _submit(
        self,
        work: Callable[[Store], Any],
        told: Callable[[Any], Arrived],
        undurable: Arrived,
        not_done: Callable[[], None] = lambda: None,
        take: Callable[[Arrived], None] | None = None,
    ) -> None:
        waiting = True
        take = take or self._take

        def tell(arrived: Arrived) -> None:
            nonlocal waiting
            if waiting:
                waiting = False
                late.cancel()
                take(arrived)

        def wait_no_more() -> None:
            tell(undurable)
            not_done()

        def failed(error: StoreError) -> None:
            if not self._failing:
                log.error("not stored; counted in memory", extra={"error": str(error)})
            self._failing = True
            wait_no_more()

        def done(result: Any) -> None:
            self._failing = False
            tell(told(result))
            self._store_what_waits()

        late = self._loop.call_after(PATIENCE_SECONDS, wait_no_more)
        if self._writer is None:
            wait_no_more()
        else:
            self._writer.submit(work, done, failed)

    def _keep_for_later(self, result: ProbeResult) -> None:
        self._unstored[result.id] = result
        for oldest in list(self._unstored)[:-MOST_RESULTS]:
            del self._unstored[oldest]

    def _keep_bursts_for_later(self, bursts: Iterable[Burst]) -> None:
        """Of too many the oldest are given up; their counters are not."""
        self._unstored_bursts |= {burst.id: burst for burst in bursts}
        for oldest in list(self._unstored_bursts)[:-MOST_EVENTS]:
            del self._unstored_bursts[oldest]

    def _store_what_waits(self) -> None:
        """Once the store can be written again. What was told already is not told again."""
        if self._unstored_bursts and self._writer is not None:
            self._writer.submit(self._restore, lambda _: None, lambda _: None)
        waiting, self._unstored = self._unstored, {}
        for result in waiting.values():
            self._resubmit(result)

    def _resubmit(self, result: ProbeResult) -> None:
        if self._writer is not None:
            self._writer.submit(_adding(result), lambda _: None, lambda _: self._keep_for_later(result))

    def _remember(self, remembered: Remembered, position: LogPosition | None) -> None:
        """What was told before the store could be read comes after what it knew."""
        self._take(remembered)
        self._boards = {board.uuid: board for board in remembered.boards} | self._boards
        self._on_recalled(remembered, position)
        for result in self._unstored.values():
            self._take(ProbeEnded(result=result))

    # In the writer's thread

    def _opened(self, store: Store) -> None:
        """The first time: recall. Whenever it can be written again: make good what was counted in memory."""
        if not self._recalled:
            self._recalled = True
            remembered, position = self._recall(store), store.log_position()
            self._loop.post(lambda: self._remember(remembered, position))
        else:
            self._make_good(store, self._latest())
        self._loop.post(self._store_what_waits)

    def _restore(self, store: Store) -> None:
        """Bursts, counters and position as they were told."""
        bursts = dict(self._unstored_bursts)
        store.restore(bursts.values(), _counters(self._latest()), self._position)
        self._loop.post(lambda: self._stored(bursts))

    def _stored(self, bursts: Mapping[str, Burst]) -> None:
        for name, burst in bursts.items():
            if self._unstored_bursts.get(name) == burst:
                del self._unstored_bursts[name]

    def _make_good(self, store: Store, report: Report) -> None:
        if store.moved_aside is not None:
            self._unstored_bursts = {event.id: event for event in report.events} | self._unstored_bursts
        self._restore(store)
        if store.moved_aside is not None:  # damaged while we ran: the new one knows no result
            for result in report.probe.history:
                store.add_probe_result(to_document(result))

    def _recall(self, store: Store) -> Remembered:
        counters = store.probe_counters(self._probe)
        return Remembered(
            counters=store.error_counters(),
            events=store.recent_events(MOST_EVENTS),
            boards=store.boards(),
            probe_results=tuple(_results(self._documents(store))),
            probe_runs={outcome: float(count) for outcome, count in counters.outcomes.items()},
            probe_skips={reason: float(count) for reason, count in counters.reasons.items()},
        )

    def _documents(self, store: Store) -> Sequence[Mapping[str, Any]]:
        """The newest results, and the last success even when many skips have come since."""
        recent = store.recent_probe_results(MOST_RESULTS)
        success = store.last_probe_result(self._probe, SUCCESSES)
        return recent if success is None or success in recent else (success, *recent)


def _adding(result: ProbeResult) -> Callable[[Store], bool]:
    """One that is stored already is neither stored nor counted again."""
    return lambda store: store.add_probe_result(to_document(result))


def _results(documents: Iterable[Mapping[str, Any]]) -> Iterator[ProbeResult]:
    for document in documents:
        try:
            yield from_document(document)
        except (TypeError, KeyError) as error:
            log.warning("a stored probe result cannot be read", extra={"id": document.get("id"), "error": str(error)})


def _counters(report: Report) -> list[ErrorCounter]:
    counted = {XID: report.memory.xids, SXID: report.memory.sxids}
    return [
        ErrorCounter(kind=kind, device=device, code=int(code), count=int(count), last_wall=last)
        for kind, devices in counted.items()
        for device, codes in devices.items()
        for code, (count, last) in codes.items()
    ]


def _boards(report: Report, wall: float) -> Iterator[Board]:
    for state in report.gpus:
        if state.fault is None and not state.uuid.startswith(UNNAMED):
            yield Board(
                uuid=state.uuid,
                bus_id=state.bus_id,
                serial=state.gpu.serial or "",
                name=state.gpu.name or "",
                first_wall=wall,
                last_wall=wall,
            )
