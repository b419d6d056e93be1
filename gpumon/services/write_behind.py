"""Reads the stored state at the start, and writes what must survive a restart without blocking the main loop."""

from __future__ import annotations

import logging
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

from gpumon.health.node_health import MAX_SIGNIFICANT, MAX_TRANSITIONS
from gpumon.health.verdict import VerdictTransition
from gpumon.model.error_event import SXID, XID, ErrorCounter
from gpumon.probe.core.result import ProbeCounters, ProbeResult
from gpumon.probe.core.state import MAX_COMPLETED_RUNS, MAX_RESULTS
from gpumon.state.error_section import MAX_EVENTS
from gpumon.state.messages import Acceptance, ErrorChanges, StoredState, VerdictTransitions
from gpumon.state.report import Report
from gpumon.store import allocations, error_events, probe_runs, records, verdicts
from gpumon.store.store_error import StoreError
from gpumon.store.stored_rows import StoreTable
from gpumon.store.writer import StoreWriter
from gpumon.supervisor.loop import Loop

R = TypeVar("R")
T = TypeVar("T")

log = logging.getLogger("gpumon.store")

PATIENCE_SECONDS = 5.0
"""Maximum seconds that a message waits for its write before it takes effect. A hung disk must not suppress an alert."""
MOVING_SECONDS = 3600.0
"""Seconds after which a row is written again even if only fields in `StoreTable.moving` have changed."""
MAX_AGENT_RUNS = 50
"""Maximum number of runs of the agent (from start to stop) to read from the store, the newest first."""

OnDone = Callable[[StoreError | None], None]
"""Function that is called when a write has ended, with the error if it failed or is late."""
DurableMessage = Acceptance | ErrorChanges | ProbeResult | VerdictTransitions
Write = Callable[[sqlite3.Connection], object]


class WriteBehind:
    """Submits rows and messages to the store, and repeats writes that have failed. Use from the loop's thread.

    The Report is the working state, and the store is a copy of it. A failed write is not queued: when the store can be
    written again, everything that the Report contains is written. Writing a row twice has no further effect.
    """

    def __init__(
        self,
        loop: Loop,
        writer: StoreWriter,
        *,
        publish: Callable[[DurableMessage | StoredState], None],
        latest: Callable[[], Report],
    ) -> None:
        self._loop = loop
        self._writer = writer
        self._publish = publish
        self._latest = latest
        self._rows: defaultdict[StoreTable[Any], dict[Hashable, Any]] = defaultdict(dict)
        """Rows as last submitted to the store, by table and by the row's key (StoreTable.key)."""
        self.complete = True
        """False from a failed write until everything is submitted again. True does not mean that queued writes will
        succeed.
        """
        self._in_flight = 0
        """Number of calls of `write` that still wait for their write to end or for PATIENCE_SECONDS to pass."""

    # Messages that are stored before they take effect

    def record(self, message: DurableMessage, on_done: OnDone = lambda _: None, *, required: bool = False) -> None:
        """Write a message to the store, then publish it to the Report and call `on_done` with None.

        If the write fails or takes longer than PATIENCE_SECONDS, publish the message nevertheless, and call `on_done`
        with the error. If the write is `required`, wait for its end, and do not publish the message if it failed.
        """
        write = _WRITES[type(message)]
        self.write(lambda connection: write(connection, message), on_done, message=message, required=required)

    def write(
        self,
        work: Write,
        on_done: OnDone = lambda _: None,
        *,
        message: DurableMessage | None = None,
        required: bool = False,
    ) -> None:
        """Run `work` in the store's thread. The other arguments are those of `record`, which has a message."""
        waiting = True
        self._in_flight += 1

        def settle(answer: Future[object] | None) -> None:
            """`answer`: that of the ended write; None if the write is late."""
            nonlocal waiting
            error: Any = self._writer.late() if answer is None else answer.exception()
            if answer is not None and error is not None:
                if self.complete:
                    words = {"error": str(error)}
                    log.error("a write failed: it is repeated when the store can be written", extra=words)
                self.complete = False
            if waiting and not (required and answer is None):
                waiting = False
                late.cancel()
                self._in_flight -= 1
                if message is not None and not (required and error):
                    self._publish(message)
                on_done(error)
            if error is None:
                self.rewrite()

        late = self._loop.call_after(PATIENCE_SECONDS, lambda: settle(None))
        self._writer.submit(work).add_done_callback(lambda answer: self._loop.post(lambda: settle(answer)))

    # Rows that are copied from the Report

    def rows(self, table: StoreTable[R]) -> Mapping[Hashable, R]:
        """Return the rows of a table as last submitted to the store, by key."""
        return self._rows[table]

    def put(self, table: StoreTable[R], rows: Iterable[R], *, everything: bool = False) -> None:
        """Write those of the rows that differ from the rows last submitted; if `everything` is True, write all rows."""
        stored = self._rows[table]
        keyed = {table.key(row): row for row in rows}
        due = {key: row for key, row in keyed.items() if everything or _is_due(table, stored.get(key), row)}
        if due:
            stored.update(due)
            self.write(lambda connection: table.put(connection, due.values()))

    # Writes after a failure

    def restore(self, stored: StoredState) -> None:
        """Publish the state read from the store, and note its rows as those last submitted, for `put`.

        Rows that were submitted before this call are newer than the rows read, and remain those last submitted.
        """
        self._publish(stored)
        tables: Mapping[StoreTable[Any], Sequence[Any]] = {
            records.GPUS: stored.gpus,
            records.PORTS: stored.ports,
            records.AGENT_RUNS: stored.agent_runs,
            records.WINDOWS: stored.windows,
        }
        for table, rows in tables.items():
            self._rows[table] = {table.key(row): row for row in rows} | self._rows[table]

    def write_everything(self) -> None:
        """Write everything that the Report contains, at once or as soon as `rewrite` is able to."""
        self.complete = False
        self.rewrite()

    def rewrite(self) -> None:
        """Write everything that the Report contains if a write has failed.

        Do nothing before the stored state is published, or while a message waits for its write, because in both cases
        the store may have data that the Report still lacks.
        """
        report = self._latest()
        if self.complete or self._in_flight or not report.agent.restored:
            return
        self.complete = True
        rows = {table: tuple(rows.values()) for table, rows in self._rows.items()}
        self.write(lambda connection: _write_report(connection, report, rows))


def _accept(connection: sqlite3.Connection, message: Acceptance) -> None:
    records.accept_gpus(connection, message.count, message.gone)
    records.accept_lanes(connection, message.lanes)
    records.accept_ports(connection, message.ports, message.slow)


_WRITES: Mapping[type, Callable[..., object]] = {
    Acceptance: _accept,
    ErrorChanges: lambda connection, message: error_events.record(connection, message.changes, message.position),
    ProbeResult: probe_runs.record,
    VerdictTransitions: lambda connection, message: verdicts.record(connection, message.transitions),
}
"""Function that writes a message to the store, by its type."""


def _is_due(table: StoreTable[R], stored: R | None, row: R) -> bool:
    """Return True if `row` must be written, because it differs from the row last submitted, `stored`.

    Fields in `StoreTable.moving` count as a difference only if `last_wall` is more than MOVING_SECONDS newer.
    """
    if stored is None or not table.moving:
        return stored != row
    present: Any = row
    former: Any = stored
    if present.last_wall - former.last_wall > MOVING_SECONDS:
        return True
    return bool(replace(former, **{name: getattr(present, name) for name in table.moving}) != present)


def read_stored_state(connection: sqlite3.Connection) -> StoredState:
    """Return what the Report keeps of the store: of histories only the newest rows."""
    return StoredState(
        counters=error_events.read_counters(connection),
        events=error_events.read_recent(connection, MAX_EVENTS),
        position=error_events.read_position(connection),
        gpus=records.read_gpus(connection),
        ports=records.read_ports(connection),
        accepted=records.accepted_count(connection) is not None,
        verdicts=verdicts.read_open(connection),
        transitions=_transitions(connection),
        cleared=verdicts.read_last_cleared(connection),
        pending=verdicts.read_pending(connection),
        agent_runs=records.read_agent_runs(connection, MAX_AGENT_RUNS),
        windows=records.read_windows(connection),
        allocations=allocations.read_open(connection),
        notified=records.read_notified(connection),
        probe_results=probe_runs.read_recent(connection, newest=MAX_RESULTS, each=MAX_COMPLETED_RUNS),
        probe_counters=probe_runs.read_counters(connection),
    )


def _write_report(
    connection: sqlite3.Connection, report: Report, rows: Mapping[StoreTable[Any], Sequence[Any]]
) -> None:
    """Write these rows, and the events, verdicts, probe results, counters, allocations and inventory in the Report.

    Writing what the store already has changes nothing.
    """
    for table, table_rows in rows.items():
        table.put(connection, table_rows)
    error_counters = [
        ErrorCounter(kind=kind, device=device, code=int(code), count=int(count), last_wall=last)
        for kind, devices in ((XID, report.errors.xids), (SXID, report.errors.sxids))
        for device, codes in devices.items()
        for code, (count, last) in codes.items()
    ]
    error_events.restore(connection, report.events, error_counters, report.errors.position)
    history = (*report.health.cleared.values(), *report.health.history)
    verdicts.restore(connection, report.health.open.values(), history)
    probe_counters = {
        probe: ProbeCounters(
            outcomes={outcome: int(count) for outcome, count in (metrics.runs_total or {}).items()},
            reasons={reason: int(count) for reason, count in (metrics.skips_total or {}).items()},
        )
        for probe, metrics in report.probe.metrics.items()
    }
    probe_runs.restore(connection, report.probe.results, probe_counters)
    allocations.put(connection, report.jobs.every)
    if report.inventory.accepted:
        records.accept_gpus(connection, report.inventory.learned, ())


def _transitions(connection: sqlite3.Connection) -> tuple[VerdictTransition, ...]:
    """Return the newest transitions of verdicts, and before them those older ones that later evaluations still need."""
    newest = verdicts.read_transitions(connection, MAX_TRANSITIONS)
    significant = verdicts.read_transitions(connection, MAX_SIGNIFICANT, significant=True)
    identities = {_identity(transition) for transition in newest}
    return (*[transition for transition in significant if _identity(transition) not in identities], *newest)


def _identity(transition: VerdictTransition) -> tuple[object, ...]:
    return transition.verdict.key, transition.change, transition.time.wall
