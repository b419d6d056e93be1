"""Writes to the store what must survive a restart, without ever blocking the main loop."""

from __future__ import annotations

import logging
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from gpumon.health.verdict import VerdictTransition
from gpumon.model.error_event import ErrorChange, LogPosition
from gpumon.probe.core.result import ProbeResult
from gpumon.services import stored_state
from gpumon.state.messages import Acceptance, ErrorChanges, ProbeEnded, StoredState, VerdictTransitions
from gpumon.state.report import Report
from gpumon.store import error_events, gpus, ports, probe_runs, verdicts
from gpumon.store.store_error import StoreError
from gpumon.store.store_table import StoreTable
from gpumon.store.writer import StoreWriter
from gpumon.supervisor.loop import Loop

R = TypeVar("R")
T = TypeVar("T")

log = logging.getLogger("gpumon.store")

PATIENCE_SECONDS = 5.0
"""Maximum wait for a durable row: a hung disk must not suppress an alert."""
MOVING_SECONDS = 3600.0
"""Maximum age of the `moving` fields of a stored row."""

DurableMessage = Acceptance | ErrorChanges | ProbeEnded | StoredState | VerdictTransitions


class WriteBehind:
    """Which rows the store has, and whether a write is missing.

    The Report is the working state, and the store follows it. A failed write is not queued. When the store can be
    written again, everything that the Report holds is written, and each table skips what it already has. Use from the
    loop's thread.
    """

    def __init__(
        self,
        loop: Loop,
        writer: StoreWriter,
        probe: str,
        *,
        publish: Callable[[DurableMessage], None],
        latest: Callable[[], Report],
    ) -> None:
        self._loop = loop
        self._writer = writer
        self._probe = probe
        self._publish = publish
        self._latest = latest
        self._rows: defaultdict[StoreTable[Any], dict[Hashable, Any]] = defaultdict(dict)
        """Rows by table and key, as they were last submitted to the store."""
        self.complete = True
        """False if a write has failed since everything was last written. Queued writes may still fail."""
        self._in_flight = 0
        """Number of recorded messages that were not published yet."""

    # Messages that are durable before they take effect

    def record(
        self,
        write: Callable[[sqlite3.Connection], object],
        message: DurableMessage | None,
        settled: Callable[[bool], None] = lambda _: None,
    ) -> None:
        """Write, then publish the message. If the write fails or exceeds PATIENCE_SECONDS, publish it all the same.

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
                self.rewrite()
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
        """Store what the operator accepts, then publish it. If it cannot be stored, it does not take effect."""

        def write(connection: sqlite3.Connection) -> None:
            gpus.accept(connection, acceptance.count, acceptance.gone)
            ports.accept(connection, acceptance.ports, acceptance.slow)

        def publish(_: object) -> None:
            self._publish(acceptance)
            done()

        self._submit(write, publish, failed)

    # Rows that follow the Report

    def rows(self, table: StoreTable[R]) -> Mapping[Hashable, R]:
        """Return the rows that the store has, by key."""
        return self._rows[table]

    def put(self, table: StoreTable[R], rows: Iterable[R], *, everything: bool = False) -> None:
        """Write the rows that differ from the stored ones. `everything`: write all of them."""
        stored = self._rows[table]
        keyed = {table.key(row): row for row in rows}
        due = {key: row for key, row in keyed.items() if everything or _is_due(table, stored.get(key), row)}
        if due:
            stored.update(due)
            self._submit(lambda connection: table.put(connection, due.values()))

    # What is missing after a failure

    def restore(self, stored: StoredState) -> None:
        """Publish the stored state. What was recorded before the store could be read is newer."""
        self._publish(stored)
        for table, rows in stored_state.rows(stored).items():
            self._rows[table] = {table.key(row): row for row in rows} | self._rows[table]

    def write_everything(self) -> None:
        """Write everything that the Report holds."""
        self.complete = False
        self.rewrite()

    def rewrite(self) -> None:
        """Write everything if a write is missing.

        Not before the stored state was published, nor while a message is in flight: the Report lacks what the store
        has.
        """
        report = self._latest()
        if self.complete or self._in_flight or not report.internal.restored:
            return
        self.complete = True
        rows = {table: tuple(rows.values()) for table, rows in self._rows.items()}
        self._submit(lambda connection: stored_state.write(connection, report, rows, self._probe))

    def _submit(
        self,
        write: Callable[[sqlite3.Connection], T],
        done: Callable[[T], None] = lambda _: None,
        failed: Callable[[StoreError], None] = lambda _: None,
    ) -> None:
        def succeed(result: T) -> None:
            done(result)
            self.rewrite()

        def fail(error: StoreError) -> None:
            if self.complete:
                log.error("a write failed: it is repeated when the store can be written", extra={"error": str(error)})
            self.complete = False
            failed(error)

        self._writer.submit(write, succeed, fail)


def _is_due(table: StoreTable[R], stored: R | None, row: R) -> bool:
    """Return whether a row differs from the stored one, in more than its moving fields or after MOVING_SECONDS."""
    if stored is None or not table.moving:
        return stored != row
    present: Any = row
    former: Any = stored
    if present.last_wall - former.last_wall > MOVING_SECONDS:
        return True
    return bool(replace(former, **{name: getattr(present, name) for name in table.moving}) != present)
