"""Tables `error_events` and `error_counters`. A counter is kept when its events are deleted."""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gpumon.model.error_event import (
    CANCELLED_BY,
    KINDS,
    NVML,
    SXID,
    XID,
    ErrorChange,
    ErrorCounter,
    ErrorEvent,
    LogPosition,
)
from gpumon.model.reading import KEY_SEPARATOR
from gpumon.store.stored_rows import (
    MAX_COUNT,
    columns_of,
    count_of,
    flat,
    insert,
    matching,
    readable,
    select,
    validate,
    values,
)

_COUNTED = (XID, SXID)
_COUNTER = ("kind", "device", "code", "count", "last_wall")
_COLUMNS = tuple(column for column in columns_of(ErrorEvent) if column != "cancelled_wall")
_COUNTS = ("nvml", "kmsg", "unnumbered")
_CONDITIONS = {
    "uuid": "(uuid = :uuid OR (uuid IS NULL AND bus_id = :bus_id))",
    "kind": "kind = :kind",
    "code": "code = :code",
    "source": f"CASE :source WHEN '{NVML}' THEN nvml > 0 ELSE kmsg > 0 OR unnumbered > 0 END",
    "since": "last_wall > :since",
    "until": "first_wall < :until",
    "before": "(last_wall, number) < (:before_wall, :before_number)",
}
"""SQL for the conditions of EventQuery, by field."""
_FIRST = frozenset({"id", "kind", "code", "bus_id", "boot_id", "historical"})
"""Columns of error_events that are not changed after the row was inserted."""
_GROWING = frozenset({"last_at", "last_wall", "nvml", "kmsg", "unnumbered"})
"""Columns of error_events whose values only increase, even if an older state of the event is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventQuery:
    """A search for stored events. A condition that is None matches any event."""

    uuid: str | None = None
    bus_id: str | None = None
    """PCI address, used only together with `uuid`: events at this address that have no uuid match too."""
    kind: str | None = None
    code: int | None = None
    source: str | None = None
    since: float | None = None
    until: float | None = None
    """Unix time in seconds. An event matches if the time from its first to its last error overlaps the time from
    `since` to `until`.
    """
    before: tuple[float, int] | None = None
    """Place (StoredEvent.place) of the last event of the previous page; None for the first page."""
    limit: int = 100

    def matches(self, event: ErrorEvent) -> bool:
        """Return True if this event meets all conditions except `before` and `limit`."""
        return (
            (self.uuid in (None, event.uuid) or (event.uuid is None and event.bus_id == self.bus_id))
            and self.kind in (None, event.kind)
            and self.code in (None, event.code)
            and (self.source is None or self.source in event.sources)
            and (self.since is None or event.last.wall > self.since)
            and (self.until is None or event.first.wall < self.until)
        )


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event, and its place in the order of all events: Unix time of its last occurrence, and row number."""

    event: ErrorEvent
    place: tuple[float, int]


def record(connection: sqlite3.Connection, changes: Iterable[ErrorChange], position: LogPosition | None = None) -> None:
    """Write the state of events, add their new errors to the counters, and store the kernel log position.

    A change that is recorded twice is counted once.
    """
    for change in changes:
        event, increase = change.event, _write(connection, change)
        if increase and event.kind in _COUNTED:
            connection.execute(
                f"{insert('error_counters', _COUNTER)} ON CONFLICT (kind, device, code) DO UPDATE SET"
                f" count = {count_of('count')} + excluded.count, last_wall = max(last_wall, excluded.last_wall)",
                (event.kind, event.device, event.code, increase, event.last.wall),
            )
    _put_position(connection, position)


def restore(
    connection: sqlite3.Connection,
    events: Iterable[ErrorEvent],
    counters: Iterable[ErrorCounter],
    position: LogPosition | None = None,
) -> None:
    """Write events without counting them, the higher of each stored and given counter, and the log position."""
    for event in events:
        _write(connection, ErrorChange(event, 0))
    connection.executemany(
        f"{insert('error_counters', _COUNTER)} ON CONFLICT (kind, device, code) DO UPDATE SET"
        f" count = max({count_of('count')}, excluded.count), last_wall = max(last_wall, excluded.last_wall)",
        [values(counter, _COUNTER) for counter in counters],
    )
    _put_position(connection, position)


def _put_position(connection: sqlite3.Connection, position: LogPosition | None) -> None:
    if position is not None:
        value = f"{position.boot_id} {position.sequence}"
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('kernel_log', ?)", (value,))


def read_position(connection: sqlite3.Connection) -> LogPosition | None:
    """Return the position of the last kernel log record that was processed; None if none is stored."""
    rows = connection.execute("SELECT value FROM meta WHERE key = 'kernel_log'")
    return next(readable("meta", rows, _position), None)


def read_counters(connection: sqlite3.Connection) -> tuple[ErrorCounter, ...]:
    """Return all counters of Xids and SXids."""
    rows = connection.execute(select("error_counters", _COUNTER, "ORDER BY kind DESC, device, code"))
    return tuple(readable("error_counters", rows, _counter))


def read_recent(connection: sqlite3.Connection, limit: int) -> tuple[ErrorEvent, ...]:
    """Return the newest `limit` events, the newest last."""
    return tuple(stored.event for stored in reversed(find(connection, EventQuery(limit=limit))))


def find(connection: sqlite3.Connection, query: EventQuery) -> tuple[StoredEvent, ...]:
    """Return the events that match the query, the newest first, at most `query.limit`."""
    where, parameters = matching(query, _CONDITIONS)
    order = "ORDER BY last_wall DESC, number DESC"
    rows = connection.execute(
        select("error_events", (*_COLUMNS, _CANCELLED, "number"), f"WHERE {where} {order}"), parameters
    )
    return tuple(itertools.islice(readable("error_events", rows, _stored_event), query.limit))


def prune(connection: sqlite3.Connection, oldest: float, limit: int) -> None:
    """Delete events older than `oldest` (Unix time), and the oldest events beyond `limit` rows."""
    connection.execute(
        "DELETE FROM error_events WHERE last_wall < ? OR number <= (SELECT max(number) FROM error_events) - ?",
        (oldest, limit),
    )


def _write(connection: sqlite3.Connection, change: ErrorChange) -> int:
    """Write an event, and return the number of errors to add to its error counter."""
    event = change.event
    row = connection.execute(
        select("error_events", tuple(map(count_of, _COUNTS)), "WHERE id = ?"), (event.id,)
    ).fetchone()
    document = flat(event) | {"texts": json.dumps(event.texts)}
    connection.execute(_UPSERT, tuple(document[column] for column in _COLUMNS))
    return change.increase if row is None else max(0, event.count - max(row)) * (not event.historical)


_CANCELLERS = " ".join(f"WHEN {code} THEN {by}" for code, by in CANCELLED_BY.items())
_CANCELLED = (
    "(SELECT min(other.last_wall) FROM error_events AS other WHERE other.kind = error_events.kind"  # noqa: S608 - our own names
    f" AND other.code = CASE error_events.code {_CANCELLERS} END"
    " AND other.bus_id = error_events.bus_id AND other.last_wall >= error_events.last_wall)"
)
_UPDATES = ", ".join(
    f"{name} = max({name}, excluded.{name})" if name in _GROWING else f"{name} = excluded.{name}"
    for name in _COLUMNS
    if name not in _FIRST
)
_UPSERT = (
    f"{insert('error_events', _COLUMNS)} ON CONFLICT (id) DO UPDATE SET {_UPDATES} WHERE excluded.last_at >= last_at"
)


def _stored_event(row: Sequence[Any]) -> StoredEvent:
    *columns, cancelled, number = row
    document = dict(zip(_COLUMNS, columns, strict=True))
    texts = json.loads(document["texts"])
    event = validate(ErrorEvent, document | {"texts": texts, "cancelled_wall": cancelled})
    if event.kind not in KINDS:
        raise ValueError(f"{event.kind!r} is no kind of error")
    return StoredEvent(event, (event.last.wall, number))


def _counter(row: Sequence[Any]) -> ErrorCounter:
    counter = validate(ErrorCounter, dict(zip(_COUNTER, row, strict=True)))
    if not counter.device or KEY_SEPARATOR in counter.device or not 0 <= counter.count <= MAX_COUNT:
        raise ValueError(f"{counter.device!r} is no device, or {counter.count} is no count")
    return counter


def _position(row: Sequence[Any]) -> LogPosition:
    boot_id, _, sequence = row[0].partition(" ")
    return LogPosition(boot_id, int(sequence))
