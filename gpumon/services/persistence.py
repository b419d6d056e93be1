"""Opens the store, restores its content into the Report, stores changes of the Report, and runs queries."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from gpumon.model.allocation import Allocation
from gpumon.model.request import AuditEntry
from gpumon.model.time_window import MARKER, TimeWindow
from gpumon.services.write_behind import DurableMessage, WriteBehind, read_stored_state
from gpumon.state.gpu_inventory import Removal
from gpumon.state.messages import StoredState
from gpumon.state.report import Report
from gpumon.store import allocations, error_events, probe_runs, records
from gpumon.store.allocations import AllocationQuery
from gpumon.store.error_events import EventQuery, StoredEvent
from gpumon.store.probe_runs import RunPage, RunQuery
from gpumon.store.records import Retention, prune
from gpumon.store.store import Store
from gpumon.store.stored_rows import count_left_out
from gpumon.store.writer import StoreWriter
from gpumon.supervisor.loop import Loop

T = TypeVar("T")

log = logging.getLogger("gpumon.store")
_audit_log = logging.getLogger("gpumon.audit")
_audit_log.setLevel(logging.INFO)  # independent of log.level: the journal has the record also if the store is lost

BEAT_SECONDS = 60.0
CLOSE_SECONDS = 3.0
PRUNE_SECONDS = 3600.0
_NOT_EXPECTED = frozenset({Removal.REPLACED, Removal.ACCEPTED})


class Persistence:
    """Service that owns the store: opens it, restores the Report from it, and writes changes to it.

    Use from the loop's thread, except those methods of which it is stated.
    """

    def __init__(
        self,
        loop: Loop,
        path: Path,
        retention: Retention,
        *,
        publish: Callable[[DurableMessage | StoredState], None],
        latest: Callable[[], Report],
    ) -> None:
        self._loop = loop
        self._path = path
        self._retention = retention
        self._latest = latest
        self._writer = StoreWriter(
            path, on_open=self._read_stored_state, on_reopen=lambda: loop.post(self._write_everything)
        )
        self.writes = WriteBehind(loop, self._writer, publish=publish, latest=latest)
        self._left_out = Counter[str]()
        """Number of rows that could not be read at the start, by table. Assigned once, in the writer's thread."""
        self._on_restored: Callable[[StoredState], None] = lambda _: None
        self._on_reopened: Callable[[], None] = lambda: None

    def start(
        self,
        on_restored: Callable[[StoredState], None] = lambda _: None,
        on_reopened: Callable[[], None] = lambda: None,
    ) -> None:
        """Open the store and read its content, both in the store's own thread.

        `on_restored` is called after the Report contains the stored state, and `on_reopened` each time that the store
        can be written again after a failure. Rows past their retention are deleted now and every hour.
        """
        self._on_restored, self._on_reopened = on_restored, on_reopened
        self._writer.start()
        self._loop.every(PRUNE_SECONDS, lambda: self.submit(partial(prune, retention=self._retention, now=time.time())))

    def tick(self, *, everything: bool = False) -> None:
        """Store the GPUs, ports and time windows of the Report that have changed, or everything."""
        report, writes = self._latest(), self.writes
        stored = writes.rows(records.GPUS)
        gpus = [state.stored for state in report.gpus if state.stored is not None]
        for uuid, gone in report.inventory.removed.items():
            if gone.why in _NOT_EXPECTED and uuid in stored:
                gpus.append(replace(stored[uuid], expected=False))
        writes.put(records.GPUS, gpus, everything=everything)
        writes.put(records.WINDOWS, window_rows(report))
        if report.agent.restored:  # before, the Report lacks the times at which the ports were first read
            # A port without a PCI address and GUID cannot be identified after a restart.
            ports = [port for port in report.host.inventory.records.values() if port.bus_id or port.guid]
            # A new port may replace another. After a restart the times of all ports show which, so all are stored.
            new = any(port.identity not in writes.rows(records.PORTS) for port in ports)
            writes.put(records.PORTS, ports, everything=everything or new)

    def stop(self) -> None:
        """Store the last state of all GPUs, ports and time windows, and close the store."""
        self.tick(everything=True)
        self.close()

    def close(self) -> None:
        """Finish the queued writes and close the store. Log an error if that takes longer than CLOSE_SECONDS."""
        if not self._writer.close(CLOSE_SECONDS):
            log.error("the store did not close in time: queued writes are lost", extra={"path": str(self._path)})

    @property
    def error(self) -> str | None:
        """Return why the store cannot be written now; None if it can."""
        error = self._writer.error()
        return None if error is None else str(error)

    @property
    def notice(self) -> str | None:
        """Return a text with the problems of the store for the operator; None if there are none."""
        parts = [self.error] if self.error else []
        if self._writer.moved_aside is not None:
            parts.append(f"{self._path} was damaged and is re-created; the damaged file is {self._writer.moved_aside}")
        if left_out := self._left_out:
            tables = ", ".join(f"{table} {count}" for table, count in sorted(left_out.items()))
            parts.append(f"{left_out.total()} rows of {self._path} could not be read and are left out ({tables})")
        return ". ".join(parts) or None

    def submit(self, query: Callable[[sqlite3.Connection], T]) -> Future[T]:
        """Run a query or a write in the store's thread. Return a future with its result or StoreError. Any thread."""
        return self._writer.submit(query)

    def find_events(self, query: EventQuery) -> Future[tuple[StoredEvent, ...]]:
        """Return a future with the stored events that match the query, the newest first, at most `query.limit`."""
        return self.submit(partial(error_events.find, query=query))

    def find_runs(self, query: RunQuery) -> Future[RunPage]:
        """Return a future with the stored probe runs that match the query, the newest first, at most `query.limit`."""
        return self.submit(partial(probe_runs.find, query=query))

    def find_allocations(self, query: AllocationQuery) -> Future[tuple[Allocation, ...]]:
        """Return a future with the stored allocations that match the query, the one that began last first."""
        return self.submit(partial(allocations.find, query=query))

    def record_change(self, entry: AuditEntry) -> None:
        """Log and store a request to change the agent's state or to start work. Any thread may call this."""
        words = {name: value for name, value in asdict(entry).items() if name != "wall" and value not in ("", None)}
        _audit_log.info("change requested", extra=words)
        self.submit(partial(records.put_audit_entry, entry=entry))

    def find_changes(self, limit: int) -> Future[tuple[AuditEntry, ...]]:
        """Return a future with the newest `limit` requests that `record_change` stored, the newest first."""
        return self.submit(partial(records.read_audit_entries, limit=limit))

    def _read_stored_state(self, store: Store) -> None:
        """Read the stored state and post it to the loop. Runs in the writer's thread."""
        with store.reading() as connection, count_left_out() as left_out:
            moved_aside = str(self._writer.moved_aside or "")
            stored = replace(read_stored_state(connection), lost_to=moved_aside)
        self._left_out = left_out
        self._loop.post(lambda: self._restore(stored))

    def _restore(self, stored: StoredState) -> None:
        self.writes.restore(stored)
        self._on_restored(stored)
        self.writes.rewrite()

    def _write_everything(self) -> None:
        """Write the whole Report to the reopened store, because its file may have been deleted or replaced."""
        self.writes.write_everything()
        self._on_reopened()


def window_rows(report: Report) -> tuple[TimeWindow, ...]:
    """Return the time windows to store: not those of the marker file, which is read again after a restart."""
    return tuple(window for window in report.windows if window.by != MARKER)


class Heartbeat:
    """Service that updates the row of the running agent in the store's table agent_runs. Use from the loop's thread."""

    def __init__(self, loop: Loop, writes: WriteBehind, latest: Callable[[], Report]) -> None:
        self._loop = loop
        self._writes = writes
        self._latest = latest

    def start(self) -> None:
        """Store a row for this run at once, because the agent may crash soon, and update it each minute."""
        self._loop.every(BEAT_SECONDS, self.beat)

    def stop(self) -> None:
        """Store the current time as the time at which the agent was stopped."""
        self.beat(stopped=time.time())

    def beat(self, *, stopped: float | None = None) -> None:
        """Store the current time as the time at which the agent last ran, and whether the node is in maintenance."""
        report = self._latest()
        planned = report.maintenance is not None
        agent_run = replace(report.agent.runs[-1], last=time.time(), stopped=stopped, planned=planned)
        self._writes.put(records.AGENT_RUNS, [agent_run])
