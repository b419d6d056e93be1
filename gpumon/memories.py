"""Between the main loop and the store: what must survive is durable before it is folded, unless the disk fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gpumon.arrival import ProbeEnded, Remembered, Xids
from gpumon.inventory import UNNAMED
from gpumon.probe.result import ProbeResult, from_document, to_document
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
MOST_EVENTS = 500
MOST_RESULTS = 200

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

    def keep_xid(self, event: XidEvent) -> None:
        """Store an event, then tell it. One that is stored already is not told again."""
        self._submit(lambda store: store.add_xids([event]), lambda new: Xids(events=new), Xids(events=(event,)))

    def keep_result(self, result: ProbeResult) -> None:
        """Store a result, then tell it."""
        ended = ProbeEnded(result=result)
        self._submit(lambda store: store.add_probe_result(to_document(result)), lambda _: ended, ended)

    def _submit(self, work: Callable[[Store], Any], told: Callable[[Any], Arrived], undurable: Arrived) -> None:
        waiting = True

        def tell(arrived: Arrived) -> None:
            nonlocal waiting
            if waiting:
                waiting = False
                late.cancel()
                self._take(arrived)

        def failed(error: StoreError) -> None:
            log.error("not stored; counted in memory", extra={"error": str(error)})
            tell(undurable)

        late = self._loop.call_after(PATIENCE_SECONDS, lambda: tell(undurable))
        if self._writer is None:
            tell(undurable)
        else:
            self._writer.submit(work, lambda result: tell(told(result)), failed)

    # In the writer's thread

    def _opened(self, store: Store) -> None:
        """The first time: recall. Whenever it can be written again: make good what was counted in memory."""
        if not self._recalled:
            self._recalled = True
            remembered = self._recall(store)
            self._loop.post(lambda: self._take(remembered))
        else:
            store.keep_xid_counters(_counters(self._latest()))

    def _recall(self, store: Store) -> Remembered:
        counters = store.probe_counters(self._probe)
        return Remembered(
            xids={(_known(one.uuid), one.xid): (float(one.count), one.last_wall) for one in store.xid_counters()},
            events=store.recent_events(MOST_EVENTS),
            probe_results=tuple(_results(store.recent_probe_results(MOST_RESULTS))),
            probe_runs={outcome: float(count) for outcome, count in counters.outcomes.items()},
            probe_skips={reason: float(count) for reason, count in counters.reasons.items()},
        )


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
