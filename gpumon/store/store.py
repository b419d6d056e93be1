"""The store: plain values in and out. Every method that writes is one transaction, durable when it returns."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from gpumon.health.agent_runs import AgentRun
from gpumon.health.pending_verdicts import PendingVerdict
from gpumon.health.verdict import Key, Verdict, VerdictTransition
from gpumon.model.error_event import ErrorChange, ErrorEvent, LogPosition
from gpumon.model.port_record import PortRecord
from gpumon.model.stored_gpu import StoredGpu
from gpumon.model.time_window import Span
from gpumon.probe.core.result import ProbeResult
from gpumon.store import agent_runs, boards, pending_verdicts, ports, runs, spans, verdicts
from gpumon.store import events as event_rows
from gpumon.store.errors import told_plainly
from gpumon.store.events import ErrorCounter, EventQuery, StoredEvent
from gpumon.store.opening import Opened, open_copy, open_file, prove_in_place
from gpumon.store.runs import RunPage, RunQuery

S = TypeVar("S", bound=Span)

DAY = 86400.0
KEPT_GOOD = 200
"""Results of each probe with the outcome ok that outlive the retention: baselines are made from them."""
_PLACED = (
    "placed AS (SELECT number, outcome AS ending,"
    " row_number() OVER (PARTITION BY probe, outcome ORDER BY number DESC) AS place,"
    " row_number() OVER (PARTITION BY probe ORDER BY number DESC) AS newest FROM probe_results)"
)
"""Of each result, the how many newest it is among those that ended alike, and among all of its probe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What is deleted: older than so many days, and all but the newest rows. Counters are kept for ever."""

    days: float = 90
    rows: int = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeCounters:
    """How often a probe ended in which way since the store was begun."""

    outcomes: Mapping[str, int]
    reasons: Mapping[str, int]
    """Of the skipped."""


class Store:
    """Opened by `open`; used by one thread, and closed by it or by leaving its `with`."""

    def __init__(self, path: Path, opened: Opened, retention: Retention, clock: Callable[[], float]) -> None:
        self.path = path
        self.moved_aside = opened.moved_aside
        """Where the damaged file went in whose place this one was begun."""
        self.begun_anew = opened.begun or opened.moved_aside is not None
        """It knows nothing yet."""
        self._connection = opened.connection
        self._files = opened.files
        self._lock = opened.lock
        self._refusal = opened.refusal
        self._retention = retention
        self._clock = clock

    @classmethod
    def open(cls, path: Path, *, retention: Retention | None = None, clock: Callable[[], float] = time.time) -> Self:
        """Open or create the file. One that cannot be written can be read; then every write raises.

        `clock` tells the age of rows. Raises StoreError.
        """
        return cls(path, open_file(path), retention or Retention(), clock)

    @classmethod
    def open_copy(cls, path: Path) -> Self:
        """Open a copy in memory, to read what an agent that does not run has stored. Raises StoreError."""
        return cls(path, open_copy(path), Retention(), time.time)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        try:
            with told_plainly(self.path):
                self._connection.close()
        finally:
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def prove_writable(self) -> None:
        """Write and sync a row. Raises StoreError."""
        with self._transaction():
            self._execute("INSERT OR REPLACE INTO meta VALUES ('written', ?)", (str(self._clock()),))

    def prove_in_place(self) -> None:
        """Raises StoreError when its file was deleted, moved or replaced: what was written is found by nobody."""
        with told_plainly(self.path):
            prove_in_place(self.path, self._files)

    def record(self, changes: Iterable[ErrorChange], position: LogPosition | None = None) -> None:
        """Store bursts as they are now and count what they gained, with how far the kernel log has been told.

        A burst that is stored already counts only what it has more than its row: the same change twice is one.
        """
        with self._transaction():
            for change in changes:
                event_rows.count(self._connection, change.event, event_rows.write(self._connection, change))
            self._keep_position(position)
            self._prune_events()

    def restore(
        self, events: Iterable[ErrorEvent], counters: Iterable[ErrorCounter], position: LogPosition | None = None
    ) -> None:
        """What was told while the store was out of order: bursts, and counters raised to at least these."""
        with self._transaction():
            for event in events:
                event_rows.write(self._connection, ErrorChange(event, 0))
            for counter in counters:
                event_rows.raise_counter(self._connection, counter)
            self._keep_position(position)
            self._prune_events()

    def error_counters(self) -> tuple[ErrorCounter, ...]:
        with told_plainly(self.path):
            return event_rows.counters(self._connection)

    def recent_events(self, limit: int) -> tuple[ErrorEvent, ...]:
        """Newest last."""
        return tuple(one.event for one in reversed(self.events(EventQuery(limit=limit))))

    def events(self, query: EventQuery) -> tuple[StoredEvent, ...]:
        """Newest first."""
        with told_plainly(self.path):
            return event_rows.find(self._connection, query)

    def log_position(self) -> LogPosition | None:
        """None when no kernel log was ever told."""
        rows = self._rows("SELECT value FROM meta WHERE key = 'kernel_log'")
        boot_id, _, sequence = rows[0][0].partition(" ") if rows else ("", "", "")
        return LogPosition(boot_id, int(sequence)) if rows else None

    def _keep_position(self, position: LogPosition | None) -> None:
        if position is not None:
            value = f"{position.boot_id} {position.sequence}"
            self._execute("INSERT OR REPLACE INTO meta VALUES ('kernel_log', ?)", (value,))

    def keep_boards(self, new: Iterable[StoredGpu]) -> None:
        """Remember GPUs by uuid; when one was first seen stays."""
        with self._transaction():
            for board in new:
                boards.put(self._connection, board)
            boards.prune(self._connection)

    def boards(self) -> tuple[StoredGpu, ...]:
        """Every GPU that was ever here; of those at one address, the one seen last stands last."""
        with told_plainly(self.path):
            return boards.every(self._connection)

    def keep_ports(self, new: Iterable[PortRecord]) -> None:
        """Remember ports by identity."""
        with self._transaction():
            for port in new:
                ports.put(self._connection, port)
            ports.prune(self._connection)

    def ports(self) -> tuple[PortRecord, ...]:
        """Every port that was ever here; the one seen last stands last."""
        with told_plainly(self.path):
            return ports.every(self._connection)

    def accept(
        self, count: int | None, gone: Iterable[str], down: Iterable[str] = (), slow: Mapping[str, float] | None = None
    ) -> None:
        """A person says: so many GPUs are all there are, and these uuids and these ports are expected no more.

        `slow`: ports that run at this speed from now on.
        """
        with self._transaction():
            boards.accept(self._connection, count, gone)
            ports.accept(self._connection, down, slow or {})

    def accepted(self) -> int | None:
        """How many GPUs a person has accepted; None when nobody had to."""
        with told_plainly(self.path):
            return boards.accepted(self._connection)

    def rule(self, transitions: Iterable[VerdictTransition]) -> None:
        """Store what became of verdicts."""
        with self._transaction():
            for transition in transitions:
                verdicts.write(self._connection, transition)
            self._prune_transitions()

    def restore_verdicts(self, known: Iterable[Verdict], transitions: Iterable[VerdictTransition] = ()) -> None:
        """Exactly these, and what became of others: what was told while the store was out of order."""
        with self._transaction():
            self._execute("DELETE FROM verdicts")
            for verdict in known:
                verdicts.put(self._connection, verdict)
            for transition in transitions:
                verdicts.put_transition(self._connection, transition)

    def touch_verdicts(self, known: Iterable[Verdict]) -> None:
        """What is new about those that are there still."""
        with self._transaction():
            for verdict in known:
                verdicts.touch(self._connection, verdict)

    def keep_waiting(self, known: Iterable[PendingVerdict]) -> None:
        """What waits to become a verdict, or to end one: exactly these."""
        with self._transaction():
            pending_verdicts.keep(self._connection, known)

    def waiting(self) -> tuple[PendingVerdict, ...]:
        with told_plainly(self.path):
            return pending_verdicts.every(self._connection)

    def put_agent_run(self, agent_run: AgentRun) -> None:
        """The agent's life, as it is now."""
        with self._transaction():
            agent_runs.keep(self._connection, agent_run)

    def recent_agent_runs(self, limit: int) -> tuple[AgentRun, ...]:
        """The newest last."""
        with told_plainly(self.path):
            return agent_runs.recent(self._connection, limit)

    def keep_spans(self, known: Iterable[Span]) -> None:
        """Maintenances and holds, as they are now."""
        with self._transaction():
            for one in known:
                spans.keep(self._connection, one)

    def spans(self, kind: type[S]) -> tuple[S, ...]:
        """All of this kind, the newest last."""
        with told_plainly(self.path):
            return spans.recent(self._connection, kind)

    def open_verdicts(self) -> tuple[Verdict, ...]:
        with told_plainly(self.path):
            return verdicts.open_verdicts(self._connection)

    def recent_transitions(self, since: float, limit: int, *, weighty: bool = False) -> tuple[VerdictTransition, ...]:
        """The newest last; `since` in seconds since the epoch. `weighty`: see standing.is_weighty."""
        with told_plainly(self.path):
            return verdicts.recent_transitions(self._connection, since, limit, weighty=weighty)

    def cleared_verdicts(self) -> dict[Key, VerdictTransition]:
        """How each verdict was last cleared."""
        with told_plainly(self.path):
            return verdicts.cleared(self._connection)

    def add_probe_result(self, document: Mapping[str, Any]) -> bool:
        """Store a result and count it. False when its id is stored already.

        The document is JSON; its id, probe, started and outcome are needed, its reason is counted for skipped runs.
        """
        probe, outcome = document["probe"], document["outcome"]
        reason = document.get("reason", "") if outcome == "skipped" else ""
        text = json.dumps(document, separators=(",", ":"))
        with self._transaction():
            added = self._execute(
                "INSERT OR IGNORE INTO probe_results (id, probe, started, outcome, document) VALUES (?, ?, ?, ?, ?)",
                (document["id"], probe, document["started"], outcome, text),
            )
            if added.rowcount == 1:
                self._execute(
                    "INSERT INTO probe_counters VALUES (?, ?, ?, 1) ON CONFLICT DO UPDATE SET count = count + 1",
                    (probe, outcome, reason),
                )
            self._prune_probe_results()
        return added.rowcount == 1

    def probe_counters(self, probe: str) -> ProbeCounters:
        rows = self._rows("SELECT outcome, reason, count FROM probe_counters WHERE probe = ?", (probe,))
        outcomes: dict[str, int] = {}
        for outcome, _, count in rows:
            outcomes[outcome] = outcomes.get(outcome, 0) + count
        return ProbeCounters(outcomes=outcomes, reasons={reason: count for _, reason, count in rows if reason})

    def probe_runs(self, query: RunQuery) -> RunPage:
        """A page of them, the newest first."""
        with told_plainly(self.path):
            return runs.find(self._connection, query)

    def known_probe_results(self, *, newest: int, each: int) -> tuple[ProbeResult, ...]:
        """The newest last: of each probe the newest, each outcome but skips, and all good ones kept."""
        rows = self._rows(
            f"WITH {_PLACED} SELECT id, document FROM probe_results JOIN placed USING (number)"  # noqa: S608 - our own
            " WHERE newest <= ? OR (place <= ? AND ending != 'skipped') OR (place <= ? AND ending = 'ok')"
            " ORDER BY number",
            (newest, each, KEPT_GOOD),
        )
        return tuple(runs.readable(rows))

    def prune(self) -> None:
        """Delete what the retention does not keep. Adding does so too."""
        with self._transaction():
            self._prune_events()
            self._prune_probe_results()
            self._prune_transitions()

    def _prune_events(self) -> None:
        self._execute("DELETE FROM events WHERE last_wall < ?", (self._oldest,))
        self._execute(
            "DELETE FROM events WHERE number <= (SELECT max(number) FROM events) - ?",
            (self._retention.rows,),
        )

    def _prune_transitions(self) -> None:
        self._execute(
            "DELETE FROM rulings WHERE (wall < ? OR number <= (SELECT max(number) FROM rulings) - ?)"  # noqa: S608
            f" AND number NOT IN ({verdicts.LAST_CLEARED})",
            (self._oldest, self._retention.rows),
        )

    def _prune_probe_results(self) -> None:
        """What says how the probe last ended, and what is normal, outlives the retention."""
        self._execute(
            "DELETE FROM probe_results WHERE (started < ? OR number <= (SELECT max(number) FROM probe_results) - ?)"  # noqa: S608 - our own names
            f" AND number NOT IN (WITH {_PLACED}"
            " SELECT number FROM placed WHERE place = 1 OR (place <= ? AND ending = 'ok'))",
            (self._oldest, self._retention.rows, KEPT_GOOD),
        )

    @property
    def _oldest(self) -> float:
        return self._clock() - self._retention.days * DAY

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        if self._refusal is not None:
            raise self._refusal
        with told_plainly(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):  # a full disk has rolled back by itself
                    self._connection.execute("ROLLBACK")
                raise

    def _execute(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        return self._connection.execute(statement, values)

    def _rows(self, statement: str, values: Sequence[object] = ()) -> list[Any]:
        with told_plainly(self.path):
            return self._connection.execute(statement, values).fetchall()
