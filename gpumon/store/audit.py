"""Table `audit`: authorized requests to change the state of the agent or to start work, with their clients."""

from __future__ import annotations

import sqlite3

from gpumon.model.audit_entry import AuditEntry
from gpumon.store.stored_rows import columns_of, insert, read_records, values

MAX_ROWS = 10_000


def put(connection: sqlite3.Connection, entry: AuditEntry) -> None:
    """Insert a row for a request, and delete the oldest rows beyond MAX_ROWS."""
    columns = columns_of(AuditEntry)
    connection.execute(insert("audit", columns), values(entry, columns))
    connection.execute("DELETE FROM audit WHERE number <= (SELECT max(number) FROM audit) - ?", (MAX_ROWS,))


def read(connection: sqlite3.Connection, limit: int) -> tuple[AuditEntry, ...]:
    """Return the newest `limit` requests, the newest first."""
    return read_records(connection, "audit", AuditEntry, "ORDER BY number DESC LIMIT ?", (limit,))
