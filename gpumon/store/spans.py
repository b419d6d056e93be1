"""Rows of maintenances and holds. Inside the caller's transaction."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable
from dataclasses import fields
from typing import TypeVar

from gpumon.model.durations import LATEST
from gpumon.model.hold import Hold
from gpumon.model.maintenance import MOST_REMEMBERED, Maintenance
from gpumon.model.time_window import Span
from gpumon.store.table import Table

S = TypeVar("S", bound=Span)

log = logging.getLogger("gpumon.store")

_TABLES: dict[type[Span], tuple[str, tuple[str, ...]]] = {
    Maintenance: ("maintenance", ("began",)),
    Hold: ("holds", ("began", "owner")),
}
"""Its table, and by what a row of it is known."""
_COLUMNS = {"by": "asker"}
"""Where the column is not called as the attribute is."""


def put(connection: sqlite3.Connection, windows: Iterable[Span]) -> None:
    """Insert windows or update their rows."""
    for window in windows:
        _put(connection, window)


def _put(connection: sqlite3.Connection, one: Span) -> None:
    table, key = _TABLES[type(one)]
    columns = _columns(type(one))
    connection.execute(
        f"INSERT INTO {table} ({', '.join(columns.values())}) VALUES ({', '.join('?' * len(columns))})"  # noqa: S608 - our own names
        f" ON CONFLICT ({', '.join(key)}) DO UPDATE SET began_at = excluded.began_at, until = excluded.until,"
        " deadline = excluded.deadline, boot_id = excluded.boot_id, ended = excluded.ended",
        tuple(getattr(one, name) for name in columns),
    )
    connection.execute(
        f"DELETE FROM {table} WHERE ended IS NOT NULL AND number <= (SELECT max(number) FROM {table}) - ?",  # noqa: S608
        (MOST_REMEMBERED,),
    )


TABLE: Table[Span] = Table(name="windows", key=lambda one: (type(one), one.key), put=put)


def read(connection: sqlite3.Connection, kind: type[S]) -> tuple[S, ...]:
    """The newest last. Those that cannot be true, as of a spoilt disk, are left out."""
    (table, _), columns = _TABLES[kind], _columns(kind)
    rows = connection.execute(f"SELECT {', '.join(columns.values())} FROM {table} ORDER BY number")  # noqa: S608
    spans = [kind(**dict(zip(columns, row, strict=True))) for row in rows]
    return tuple(one for one in spans if _is_possible(one, table))


def _is_possible(one: Span, table: str) -> bool:
    """An end that never comes would keep the agent, which waits for it, from starting."""
    moments = (one.began, one.began_at, one.until, one.deadline, one.ended)
    possible = all(moment is None or abs(moment) <= LATEST for moment in moments)
    if not possible:
        log.warning("a stored span cannot be true, and counts no more", extra={"table": table, "reason": one.reason})
    return possible


def _columns(kind: type[Span]) -> dict[str, str]:
    """By attribute."""
    return {one.name: _COLUMNS.get(one.name, one.name) for one in fields(kind)}
