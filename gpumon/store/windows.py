"""Rows of time windows. Inside the caller's transaction."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from gpumon.model.durations import LATEST
from gpumon.model.time_window import MAX_ENDED, TimeWindow, WindowKind, Windows
from gpumon.store.store_table import StoreTable, insert, values

log = logging.getLogger("gpumon.store")

_COLUMNS = [field.name for field in fields(TimeWindow)]
_INSERT = (
    f"{insert('windows', _COLUMNS)} ON CONFLICT (id) DO UPDATE SET start_at = excluded.start_at,"
    " until = excluded.until, deadline = excluded.deadline, boot_id = excluded.boot_id, ended = excluded.ended,"
    " ended_by = excluded.ended_by"
)


def put(connection: sqlite3.Connection, windows: Iterable[TimeWindow]) -> None:
    """Insert windows or update their rows, and delete the oldest of each kind that have ended."""
    for window in windows:
        connection.execute(_INSERT, values(window, _COLUMNS))
        connection.execute(
            "DELETE FROM windows WHERE kind = ? AND ended IS NOT NULL"
            " AND number NOT IN (SELECT number FROM windows WHERE kind = ? ORDER BY number DESC LIMIT ?)",
            (window.kind, window.kind, MAX_ENDED),
        )


TABLE: StoreTable[TimeWindow] = StoreTable(name="windows", key=lambda window: window.id, put=put)


def read(connection: sqlite3.Connection) -> Windows:
    """Return all windows, the newest last, without damaged rows."""
    names = ", ".join(f'"{column}"' for column in _COLUMNS)
    rows = connection.execute(f"SELECT {names} FROM windows ORDER BY number")  # noqa: S608 - our own names
    windows = (_window(dict(zip(_COLUMNS, row, strict=True))) for row in rows)
    return tuple(window for window in windows if window is not None)


def _window(row: dict[str, Any]) -> TimeWindow | None:
    """Return the window; None for a damaged row: a deadline that never comes would keep the samplers stopped."""
    try:
        window = TimeWindow(**row | {"kind": WindowKind(row["kind"])})
        moments = (window.start, window.start_at, window.until, window.deadline, window.ended)
        if all(moment is None or abs(moment) <= LATEST for moment in moments):
            return window
    except (TypeError, ValueError):
        pass
    log.warning("ignored a stored time window that cannot be true", extra={"id": row["id"], "kind": row["kind"]})
    return None
