"""Between the main loop and the store: what must survive is durable before it is folded, unless the disk fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpumon.arrival import ProbeEnded, Remembered, Xids
from gpumon.fold import MOST_EVENTS, MOST_RESULTS
from gpumon.inventory import UNNAMED
from gpumon.probe.result import SUCCESSES, ProbeResult, from_document, to_document
from gpumon.report import Report
from gpumon.snapshot.snapshot import XidEvent
from gpumon.store.errors import StoreError
from gpumon.store.store import Retention, Store, XidCounter
from gpumon.store.writer import Writer
from gpumon.supervisor.loop import Loop

log = logging.getLogger("gpumon.store")

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
PATIENCE_SECONDS = 5.0
"""How long a fault may wait for its durable row: a hung disk must not silence an alert."""
CLOSE_SECONDS = 3.0

Arrived = Xids | ProbeEnded | Remembered


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
    ) -> None:
        self._loop = loop
        self._path = path
        self._retention = retention
        self._probe = probe
        self._take = take
        self._latest = latest
        self._recalled = False
        self._unstored: dict[str, ProbeResult] = {}
        """Results that were told and, as far as is known, are not stored; by id."""
        self._writer: Writer | None = None

    def start(self) -> None:
        """Open the store in its own thread, and recall what it knows."""
        boot_id = BOOT_ID.read_text(encoding="ascii").strip()
        self._writer = Writer(
            self._path, boot_id=boot_id, retention=self._retention, post=self._loop.post, on_open=self._opened
        )

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

    def keep_xid(self, event: XidEvent) -> None:
        """Store an event, then tell it. One that is stored already is not told again."""
        self._submit(lambda store: store.add_xids([event]), lambda new: Xids(events=new), Xids(events=(event,)))

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
    ) -> None:
        waiting = True

        def tell(arrived: Arrived) -> None:
            nonlocal waiting
            if waiting:
                waiting = False
                late.cancel()
                self._take(arrived)

        def wait_no_more() -> None:
            not_done()
            tell(undurable)

        def failed(error: StoreError) -> None:
            log.error("not stored; counted in memory", extra={"error": str(error)})
            wait_no_more()

        def done(result: Any) -> None:
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

    def _store_what_waits(self) -> None:
        """Once the store can be written again. What was told already is not told again."""
        waiting, self._unstored = self._unstored, {}
        for result in waiting.values():
            self._resubmit(result)

    def _resubmit(self, result: ProbeResult) -> None:
        if self._writer is not None:
            self._writer.submit(_adding(result), lambda _: None, lambda _: self._keep_for_later(result))

    def _remember(self, remembered: Remembered) -> None:
        """What was told before the store could be read comes after what it knew."""
        self._take(remembered)
        for result in self._unstored.values():
            self._take(ProbeEnded(result=result))
        if self._writer is not None:
            counters = _counters(self._latest())
            self._writer.submit(lambda store: store.keep_xid_counters(counters), lambda _: None, lambda _: None)

    # In the writer's thread

    def _opened(self, store: Store) -> None:
        """The first time: recall. Whenever it can be written again: make good what was counted in memory."""
        if not self._recalled:
            self._recalled = True
            remembered = self._recall(store)
            self._loop.post(lambda: self._remember(remembered))
        else:
            self._make_good(store, self._latest())
        self._loop.post(self._store_what_waits)

    def _make_good(self, store: Store, report: Report) -> None:
        store.keep_xid_counters(_counters(report))
        if store.moved_aside is not None:  # damaged while we ran: the new one knows no result
            for result in report.probe.history:
                store.add_probe_result(to_document(result))

    def _recall(self, store: Store) -> Remembered:
        counters = store.probe_counters(self._probe)
        return Remembered(
            xids={(_known(one.uuid), one.xid): (float(one.count), one.last_wall) for one in store.xid_counters()},
            events=store.recent_events(MOST_EVENTS),
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


def _known(uuid: str) -> str:
    return uuid.lower() if uuid.startswith(UNNAMED) else uuid


def _counters(report: Report) -> list[XidCounter]:
    return [
        XidCounter(uuid=uuid, xid=int(xid), count=int(count), last_wall=last)
        for uuid, counted in report.memory.xids.items()
        for xid, (count, last) in counted.items()
    ]
