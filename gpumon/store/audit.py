"""Table `audit`: authorized requests to change the state of the agent or to start work, with their clients."""

from __future__ import annotations

import sqlite3
from dataclasses import fields

from gpumon.model.audit_entry import AuditEntry
from gpumon.store.store_table import insert, select, values
from gpumon.store.stored_rows import records

MAX_ROWS = 10_000

_COLUMNS = tuple(field.name for field in fields(AuditEntry))


def put(connection: sqlite3.Connection, entry: AuditEntry) -> None:
    """Insert a row for a request, and delete the oldest rows beyond MAX_ROWS."""
    connection.execute(insert("audit", _COLUMNS), values(entry, _COLUMNS))
    connection.execute("DELETE FROM audit WHERE number <= (SELECT max(number) FROM audit) - ?", (MAX_ROWS,))


def read(connection: sqlite3.Connection, limit: int) -> tuple[AuditEntry, ...]:
    """Return the newest `limit` requests, the newest first."""
    rows = connection.execute(select("audit", _COLUMNS, "ORDER BY number DESC LIMIT ?"), (limit,))
    return records("audit", AuditEntry, _COLUMNS, rows)
