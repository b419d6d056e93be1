"""Table `windows`: releases, holds and maintenances. The functions run inside the caller's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from gpumon.model.durations import LATEST
from gpumon.model.time_window import MAX_ENDED, TimeWindow, Windows
from gpumon.store.stored_rows import StoreTable, columns_of, readable, upsert, validate

_COLUMNS = columns_of(TimeWindow)


def put(connection: sqlite3.Connection, windows: Iterable[TimeWindow]) -> None:
    """Insert or update one row for each time window.

    For each kind in `windows`, delete the windows that have ended, except those among the newest MAX_ENDED of the kind.
    """
    for window in windows:
        upsert(connection, "windows", TimeWindow, [window], key="id")
        connection.execute(
            "DELETE FROM windows WHERE kind = ? AND ended IS NOT NULL"
            " AND number NOT IN (SELECT number FROM windows WHERE kind = ? ORDER BY number DESC LIMIT ?)",
            (window.kind, window.kind, MAX_ENDED),
        )


TABLE: StoreTable[TimeWindow] = StoreTable(name="windows", key=lambda window: window.id, put=put)


def read(connection: sqlite3.Connection) -> Windows:
    """Return all stored time windows, the newest last. Damaged rows are left out."""
    names = ", ".join(f'"{column}"' for column in _COLUMNS)
    rows = connection.execute(f"SELECT {names} FROM windows ORDER BY number")  # noqa: S608 - our own names
    return tuple(readable("windows", rows, _window))


def _window(row: Sequence[Any]) -> TimeWindow:
    """Return the time window in a row. Raise ValueError if one of its times is impossible.

    A release with a deadline that never comes would keep the samplers stopped.
    """
    window = validate(TimeWindow, dict(zip(_COLUMNS, row, strict=True)))
    moments = (*window.started[1:], *window.deadline[1:], window.ended or 0.0)
    if max(map(abs, moments)) > LATEST:
        raise ValueError(f"{window.kind} {window.id} has a time that cannot be true")
    return window
