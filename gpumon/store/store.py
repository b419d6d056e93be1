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
from typing import Any, Self

from gpumon.snapshot.snapshot import XidEvent
from gpumon.store.errors import told_plainly
from gpumon.store.opening import Opened, open_file

DAY = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What is deleted: older than so many days, and all but the newest rows. Counters are kept for ever."""

    days: float = 90
    rows: int = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class XidCounter:
    """How often a GPU has had an Xid since the store was begun."""

    uuid: str
    """pci-<bus id>, in lower case, where the GPU's own is not known."""
    xid: int
    count: int
    last_wall: float
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeCounters:
    """How often a probe ended in which way since the store was begun."""

    outcomes: Mapping[str, int]
    reasons: Mapping[str, int]
    """Of the skipped."""


class Store:
    """Opened by `open`; used by one thread, and closed by it or by leaving its `with`."""

    def __init__(
        self, path: Path, opened: Opened, boot_id: str, retention: Retention, clock: Callable[[], float]
    ) -> None:
        self.path = path
        self.moved_aside = opened.moved_aside
        """Where the damaged file went in whose place this one was begun."""
        self._connection = opened.connection
        self._lock = opened.lock
        self._refusal = opened.refusal
        self._boot_id = boot_id
        self._retention = retention
        self._clock = clock

    @classmethod
    def open(
        cls, path: Path, *, boot_id: str, retention: Retention | None = None, clock: Callable[[], float] = time.time
    ) -> Self:
        """Open or create the file. One that cannot be written can be read; then every write raises.

        `boot_id` stands beside each event; `clock` tells the age of rows. Raises StoreError.
        """
        return cls(path, open_file(path), boot_id, retention or Retention(), clock)

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

    def add_xids(self, events: Iterable[XidEvent]) -> tuple[XidEvent, ...]:
        """Store events and count them. Answers those that were new: one that is stored already is not counted again."""
        with self._transaction():
            new = tuple(event for event in events if self._add_xid(event))
            for event in new:
                self._count_xid(event)
            self._prune_xids()
        return new

    def _add_xid(self, event: XidEvent) -> bool:
        added = self._execute(
            "INSERT OR IGNORE INTO xid_events (boot_id, bus_id, uuid, xid, at, wall, source)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (self._boot_id, event.bus_id, event.uuid, event.xid, event.at, event.wall, event.source),
        )
        return added.rowcount == 1

    def _count_xid(self, event: XidEvent) -> None:
        self._execute(
            "INSERT INTO xid_counters VALUES (?, ?, 1, ?) ON CONFLICT DO UPDATE SET"
            " count = count + 1, last_wall = max(last_wall, excluded.last_wall)",
            (event.uuid or f"pci-{event.bus_id.lower()}", event.xid, event.wall),
        )

    def keep_xid_counters(self, counters: Iterable[XidCounter]) -> None:
        """Raise counters to at least these: what was counted while the store was out of order, or before a loss."""
        with self._transaction():
            for one in counters:
                self._execute(
                    "INSERT INTO xid_counters VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
                    " count = max(count, excluded.count), last_wall = max(last_wall, excluded.last_wall)",
                    (one.uuid, one.xid, one.count, one.last_wall),
                )

    def xid_counters(self) -> tuple[XidCounter, ...]:
        rows = self._rows("SELECT uuid, xid, count, last_wall FROM xid_counters ORDER BY uuid, xid")
        return tuple(XidCounter(uuid=uuid, xid=xid, count=count, last_wall=wall) for uuid, xid, count, wall in rows)

    def recent_events(self, limit: int) -> tuple[XidEvent, ...]:
        """Newest last. `at` is of the boot clock of its time, which may have been an earlier boot's."""
        rows = self._rows(
            "SELECT xid, bus_id, uuid, at, wall, source FROM xid_events ORDER BY id DESC LIMIT ?", (limit,)
        )
        return tuple(
            XidEvent(xid=xid, bus_id=bus_id, uuid=uuid, at=at, wall=wall, source=source)
            for xid, bus_id, uuid, at, wall, source in reversed(rows)
        )

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

    def recent_probe_results(self, limit: int) -> tuple[dict[str, Any], ...]:
        """Documents, newest last."""
        rows = self._rows("SELECT document FROM probe_results ORDER BY number DESC LIMIT ?", (limit,))
        return tuple(json.loads(text) for (text,) in reversed(rows))

    def last_probe_result(self, probe: str, outcomes: Sequence[str]) -> dict[str, Any] | None:
        """The newest document with one of these outcomes. The newest of each outcome outlives the retention."""
        rows = self._rows(
            f"SELECT document FROM probe_results WHERE probe = ? AND outcome IN ({', '.join('?' * len(outcomes))})"  # noqa: S608 - question marks
            " ORDER BY number DESC LIMIT 1",
            (probe, *outcomes),
        )
        return json.loads(rows[0][0]) if rows else None

    def prune(self) -> None:
        """Delete what the retention does not keep. Adding does so too."""
        with self._transaction():
            self._prune_xids()
            self._prune_probe_results()

    def _prune_xids(self) -> None:
        self._execute("DELETE FROM xid_events WHERE wall < ?", (self._oldest,))
        self._execute(
            "DELETE FROM xid_events WHERE id <= (SELECT max(id) FROM xid_events) - ?",
            (self._retention.rows,),
        )

    def _prune_probe_results(self) -> None:
        self._execute(
            "DELETE FROM probe_results WHERE (started < ? OR number <= (SELECT max(number) FROM probe_results) - ?)"
            " AND number NOT IN (SELECT max(number) FROM probe_results GROUP BY probe, outcome)",
            (self._oldest, self._retention.rows),
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
