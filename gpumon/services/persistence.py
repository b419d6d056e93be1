"""Writes to the store what must survive a restart, without ever blocking the main loop."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from gpumon.health.verdict import VerdictTransition
from gpumon.model.error_event import ErrorChange, LogPosition
from gpumon.probe.core.result import ProbeResult
from gpumon.services import stored_state
from gpumon.services.report_rows import gpu_rows, port_rows, window_rows
from gpumon.state.messages import Acceptance, ErrorChanges, ProbeEnded, StoredState, VerdictTransitions
from gpumon.state.report import Report
from gpumon.store import error_events, gpus, ports, probe_runs, verdicts, windows
from gpumon.store.error_events import EventQuery, StoredEvent
from gpumon.store.probe_runs import RunPage, RunQuery
from gpumon.store.retention import Retention, prune
from gpumon.store.store import Store
from gpumon.store.store_error import StoreError
from gpumon.store.store_table import StoreTable
from gpumon.store.writer import StoreWriter
from gpumon.supervisor.loop import Loop

R = TypeVar("R")
T = TypeVar("T")

log = logging.getLogger("gpumon.store")

PATIENCE_SECONDS = 5.0
"""Maximum wait for a durable row: a hung disk must not suppress an alert."""
CLOSE_SECONDS = 3.0
PRUNE_SECONDS = 3600.0
MOVING_SECONDS = 3600.0
"""Maximum age of the `moving` fields of a stored row."""

DurableMessage = Acceptance | ErrorChanges | ProbeEnded | StoredState | VerdictTransitions


class Persistence:
    """The write-behind component: which rows the store has, and whether a write is missing.

    The Report is the working state, and the store follows it. A failed write is not queued. When the store can be
    written again, everything that the Report holds is written, and each table skips what it already has. All methods
    but `read`, `find_events` and `find_runs` are called from the loop's thread.
    """

    def __init__(
        self,
        loop: Loop,
        path: Path,
        retention: Retention,
        probe: str,
        *,
        publish: Callable[[DurableMessage], None],
        latest: Callable[[], Report],
        on_restored: Callable[[StoredState], None] = lambda _: None,
    ) -> None:
        """Prepare the store. `on_restored` is called once, after the stored state was taken."""
        self._loop = loop
        self._path = path
        self._retention = retention
        self._probe = probe
        self._publish = publish
        self._latest = latest
        self._on_restored = on_restored
        self._restored = False
        """The stored state was taken."""
        self._was_read = False
        """The stored state was read. Used by the writer's thread alone."""
        self._rows: defaultdict[StoreTable[Any], dict[Hashable, Any]] = defaultdict(dict)
        """Rows by table and key, as they were last submitted to the store."""
        self._complete = True
        """False if a write has failed since everything was last written."""
        self._in_flight = 0
        """Number of recorded messages that were not taken yet."""
        self._writer = StoreWriter(path, post=loop.post, on_open=self._read_stored_state)

    def start(self) -> None:
        """Open the store in its own thread, and read its content."""
        self._writer.start()
        self._loop.every(PRUNE_SECONDS, self._prune)

    def tick(self) -> None:
        """Write the GPUs, ports and time windows of the Report that have changed."""
        self._put_report()

    def stop(self) -> None:
        """Write the last state of all GPUs and ports, and close the store."""
        self._put_report(everything=True)
        self.close()

    def close(self) -> None:
        """Finish the queued writes, and close the store."""
        if not self._writer.close(CLOSE_SECONDS):
            log.error("the store did not close in time: queued writes are lost", extra={"path": str(self._path)})

    @property
    def error(self) -> str | None:
        """Why nothing can be written now."""
        error = self._writer.error()
        return None if error is None else str(error)

    @property
    def notice(self) -> str | None:
        """The present error, and where a damaged store was moved."""
        moved_aside = self._writer.moved_aside
        if moved_aside is None:
            return self.error
        notice = f"{self._path} was damaged and is re-created; the damaged file is {moved_aside}"
        return f"{self.error}. {notice}" if self.error else notice

    @property
    def complete(self) -> bool:
        """Whether no write is missing, as far as is known: queued writes may still fail."""
        return self._complete

    # Messages that are durable before they take effect

    def record(
        self,
        write: Callable[[sqlite3.Connection], object],
        message: DurableMessage | None,
        settled: Callable[[bool], None] = lambda _: None,
    ) -> None:
        """Write, then take the message. If the write fails or exceeds PATIENCE_SECONDS, take it without.

        `settled` is called after that, with whether the write has succeeded.
        """
        waiting = True
        self._in_flight += 1

        def settle(*, stored: bool) -> None:
            nonlocal waiting
            if not waiting:
                return
            waiting = False
            late.cancel()
            self._in_flight -= 1
            if message is not None:
                self._publish(message)
            if stored:
                self._rewrite()
            settled(stored)

        late = self._loop.call_after(PATIENCE_SECONDS, lambda: settle(stored=False))
        self._submit(write, lambda _: settle(stored=True), lambda _: settle(stored=False))

    def record_errors(
        self,
        changes: Sequence[ErrorChange],
        position: LogPosition | None,
        settled: Callable[[], None] = lambda: None,
    ) -> None:
        """Record error events as they are now, and up to which record the kernel log was read for them."""

        def note_position(_: object) -> None:
            if position is not None:
                self._rows[error_events.POSITION] = {None: position}
            settled()

        message = ErrorChanges(changes=tuple(changes)) if changes else None
        self.record(lambda connection: error_events.record(connection, changes, position), message, note_position)

    def record_transitions(
        self, transitions: Sequence[VerdictTransition], settled: Callable[[bool], None] = lambda _: None
    ) -> None:
        """Record verdict transitions. One batch at a time."""
        message = VerdictTransitions(transitions=tuple(transitions))
        self.record(lambda connection: verdicts.record(connection, message.transitions), message, settled)

    def record_result(self, result: ProbeResult) -> None:
        """Record the result of a probe run."""
        self.record(lambda connection: probe_runs.record(connection, result), ProbeEnded(result=result))

    def accept(self, acceptance: Acceptance, done: Callable[[], None], failed: Callable[[StoreError], None]) -> None:
        """Store what the operator accepts, then take it. If it cannot be stored, it does not take effect."""

        def write(connection: sqlite3.Connection) -> None:
            gpus.accept(connection, acceptance.count, acceptance.gone)
            ports.accept(connection, acceptance.ports, acceptance.slow)

        def publish(_: object) -> None:
            self._publish(acceptance)
            done()

        self._submit(write, publish, failed)

    # Rows that follow the Report

    def put(self, table: StoreTable[R], rows: Iterable[R], *, everything: bool = False) -> None:
        """Write the rows that differ from the stored ones. `everything`: write all of them."""
        stored = self._rows[table]
        keyed = {table.key(row): row for row in rows}
        due = {key: row for key, row in keyed.items() if everything or _is_due(table, stored.get(key), row)}
        if due:
            stored.update(due)
            self._submit(lambda connection: table.put(connection, due.values()))

    def _put_report(self, *, everything: bool = False) -> None:
        report = self._latest()
        self.put(gpus.TABLE, gpu_rows(report, self._rows[gpus.TABLE]), everything=everything)
        self.put(windows.TABLE, window_rows(report))
        if self._restored:  # the stored rows have the first times of the ports
            rows = port_rows(report)
            # A new port may replace another: the times of all are needed to tell which.
            new = any(port.identity not in self._rows[ports.TABLE] for port in rows)
            self.put(ports.TABLE, rows, everything=everything or new)

    # Reads

    def read(self, query: Callable[[sqlite3.Connection], T]) -> Future[T]:
        """Read from the store. Called from any thread. The future raises StoreError."""
        answer: Future[T] = Future()
        answer.set_running_or_notify_cancel()  # a client that has disconnected must not cancel it
        self._writer.submit(query, answer.set_result, answer.set_exception)
        return answer

    def find_events(self, query: EventQuery) -> Future[tuple[StoredEvent, ...]]:
        """Return a page of stored events."""
        return self.read(partial(error_events.find, query=query))

    def find_runs(self, query: RunQuery) -> Future[RunPage]:
        """Return a page of stored probe runs."""
        return self.read(partial(probe_runs.find, query=query))

    # What is missing after a failure

    def _submit(
        self,
        write: Callable[[sqlite3.Connection], T],
        done: Callable[[T], None] = lambda _: None,
        failed: Callable[[StoreError], None] = lambda _: None,
    ) -> None:
        def succeed(result: T) -> None:
            done(result)
            self._rewrite()

        def fail(error: StoreError) -> None:
            if self._complete:
                log.error("a write failed: it is repeated when the store can be written", extra={"error": str(error)})
            self._complete = False
            failed(error)

        self._writer.submit(write, succeed, fail)

    def _rewrite(self) -> None:
        """Write everything if a write is missing.

        Not before the stored state was taken, nor while a message is in flight: the Report lacks what the store has.
        """
        if self._complete or self._in_flight or not self._restored:
            return
        self._complete = True
        report = self._latest()
        rows = {table: tuple(rows.values()) for table, rows in self._rows.items()}
        self._submit(lambda connection: stored_state.write(connection, report, rows, self._probe))

    def _restore(self, stored: StoredState) -> None:
        """Take the stored state. What was recorded before the store could be read is newer."""
        self._publish(stored)
        self._restored = True
        for table, rows in stored_state.rows(stored).items():
            self._rows[table] = {table.key(row): row for row in rows} | self._rows[table]
        self._on_restored(stored)
        self._rewrite()

    def _reopened(self) -> None:
        """Write everything: the file may have been deleted or replaced."""
        self._complete = False
        self._rewrite()

    def _prune(self) -> None:
        self._writer.submit(lambda connection: prune(connection, self._retention, time.time()))

    def _read_stored_state(self, store: Store) -> None:
        """Read the stored state when the store is opened first. Runs in the writer's thread."""
        if self._was_read:
            self._loop.post(self._reopened)
            return
        with store.reading() as connection:
            stored = stored_state.read(connection, self._probe)
        self._was_read = True
        self._loop.post(lambda: self._restore(stored))


def _is_due(table: StoreTable[R], stored: R | None, row: R) -> bool:
    """Return whether a row differs from the stored one, in more than its moving fields or after MOVING_SECONDS."""
    if stored is None or not table.moving:
        return stored != row
    present: Any = row
    former: Any = stored
    if present.last_wall - former.last_wall > MOVING_SECONDS:
        return True
    return bool(replace(former, **{name: getattr(present, name) for name in table.moving}) != present)
