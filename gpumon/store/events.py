"""Rows of errors: bursts, and the counters that outlive them. Inside the caller's transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from gpumon.model.error_event import CANCELLED_BY, KMSG, NVML, SXID, XID, ErrorChange, ErrorEvent

_COUNTERS = {XID: ("xid_counters", "uuid", "xid"), SXID: ("sxid_counters", "nvswitch", "sxid")}
_COLUMNS = tuple(field.name for field in fields(ErrorEvent) if field.name != "cancelled_wall")
_FLAGS = ("unnumbered", "historical", "fatal")
_KEPT = frozenset({"id", "kind", "code", "bus_id", "boot_id", "historical"})
_GROWING = frozenset({"last_at", "last_wall", "nvml", "kmsg", "unnumbered"})
"""Columns that an older state of the same burst must not take back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorCounter:
    """How often a device has had an error since the store was begun."""

    kind: str
    device: str
    """As Burst.device names it."""
    code: int
    count: int
    last_wall: float
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventQuery:
    """Which events; None is any."""

    uuid: str | None = None
    bus_id: str | None = None
    """With a uuid: events at this address that name no GPU are its own too."""
    kind: str | None = None
    code: int | None = None
    source: str | None = None
    since: float | None = None
    until: float | None = None
    """Seconds since the epoch: the event was seen between them."""
    before: tuple[float, int] | None = None
    """Place of the last event of the page before."""
    limit: int = 100

    def matches(self, event: ErrorEvent) -> bool:
        """What the store's own search would say, but for the place."""
        return (
            (self.uuid in (None, event.uuid) or (event.uuid is None and event.bus_id == self.bus_id))
            and self.kind in (None, event.kind)
            and self.code in (None, event.code)
            and (self.source is None or self.source in event.sources)
            and (self.since is None or event.last_wall > self.since)
            and (self.until is None or event.first_wall < self.until)
        )


@dataclass(frozen=True, slots=True)
class StoredEvent:
    event: ErrorEvent
    place: tuple[float, int]
    """In the order of all events."""


def write(connection: sqlite3.Connection, change: ErrorChange) -> int:
    """Write a burst. Answers by how much it counts more than what is stored."""
    event = change.event
    row = connection.execute("SELECT nvml, kmsg, unnumbered FROM events WHERE id = ?", (event.id,)).fetchone()
    connection.execute(_upsert(), _values(event))
    return change.gained if row is None else max(0, event.count - max(row)) * (not event.historical)


def count(connection: sqlite3.Connection, event: ErrorEvent, gained: int) -> None:
    if gained and event.kind in _COUNTERS:
        table, *_ = _COUNTERS[event.kind]
        connection.execute(
            f"INSERT INTO {table} VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET"  # noqa: S608 - our own names
            " count = count + excluded.count, last_wall = max(last_wall, excluded.last_wall)",
            (event.device, event.code, gained, event.last_wall),
        )


def raise_counter(connection: sqlite3.Connection, counter: ErrorCounter) -> None:
    table, *_ = _COUNTERS[counter.kind]
    connection.execute(
        f"INSERT INTO {table} VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET"  # noqa: S608 - our own names
        " count = max(count, excluded.count), last_wall = max(last_wall, excluded.last_wall)",
        (counter.device, counter.code, counter.count, counter.last_wall),
    )


def counters(connection: sqlite3.Connection) -> tuple[ErrorCounter, ...]:
    return tuple(
        ErrorCounter(kind=kind, device=name, code=code, count=number, last_wall=wall)
        for kind, (table, by, number_of) in _COUNTERS.items()
        for name, code, number, wall in connection.execute(
            f"SELECT {by}, {number_of}, count, last_wall FROM {table} ORDER BY {by}, {number_of}"  # noqa: S608 - our own
        )
    )


def find(connection: sqlite3.Connection, query: EventQuery) -> tuple[StoredEvent, ...]:
    """Newest first."""
    conditions = list(_conditions(query))
    where = f"WHERE {' AND '.join(condition for condition, _ in conditions)}" if conditions else ""
    rows = connection.execute(
        f"SELECT {', '.join(_COLUMNS)}, {_CANCELLED}, number FROM events {where}"  # noqa: S608 - our own names
        " ORDER BY last_wall DESC, number DESC LIMIT ?",
        (*(value for _, values in conditions for value in values), query.limit),
    )
    return tuple(_stored(row) for row in rows)


def _conditions(query: EventQuery) -> Iterator[tuple[str, tuple[object, ...]]]:
    if query.uuid is not None:
        yield "(uuid = ? OR (uuid IS NULL AND bus_id = ?))", (query.uuid, query.bus_id)
    if query.kind is not None:
        yield "kind = ?", (query.kind,)
    if query.code is not None:
        yield "code = ?", (query.code,)
    if query.source is not None:
        yield {NVML: "nvml > 0", KMSG: "(kmsg > 0 OR unnumbered > 0)"}[query.source], ()
    if query.since is not None:
        yield "last_wall > ?", (query.since,)
    if query.until is not None:
        yield "first_wall < ?", (query.until,)
    if query.before is not None:
        yield "(last_wall, number) < (?, ?)", query.before


_CANCELLERS = " ".join(f"WHEN {code} THEN {by}" for code, by in CANCELLED_BY.items())
_CANCELLED = (
    "(SELECT min(other.last_wall) FROM events AS other WHERE other.kind = events.kind"  # noqa: S608 - our own names
    f" AND other.code = CASE events.code {_CANCELLERS} END"
    " AND other.bus_id = events.bus_id AND other.last_wall >= events.last_wall)"
)


def _upsert() -> str:
    updates = (
        f"{name} = max({name}, excluded.{name})" if name in _GROWING else f"{name} = excluded.{name}"
        for name in _COLUMNS
        if name not in _KEPT
    )
    return (
        f"INSERT INTO events ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"  # noqa: S608 - our own
        f" ON CONFLICT (id) DO UPDATE SET {', '.join(updates)} WHERE excluded.last_at >= last_at"
    )


def _values(event: ErrorEvent) -> tuple[object, ...]:
    values = {name: getattr(event, name) for name in _COLUMNS}
    return tuple((values | {"texts": json.dumps(event.texts)}).values())


def _stored(row: tuple[Any, ...]) -> StoredEvent:
    *columns, cancelled, number = row
    values = dict(zip(_COLUMNS, columns, strict=True))
    flags = {name: None if values[name] is None else bool(values[name]) for name in _FLAGS}
    event = ErrorEvent(**values | flags | {"texts": tuple(json.loads(values["texts"])), "cancelled_wall": cancelled})
    return StoredEvent(event, (event.last_wall, number))
