"""Table `notified`: alerts of which a receiver, such as a webhook, was notified or is yet to be notified."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import asdict

from gpumon.model.notified_alert import NotifiedAlert
from gpumon.store.stored_rows import readable, validate


def read(connection: sqlite3.Connection) -> tuple[NotifiedAlert, ...]:
    """Return all alerts in the table. Unreadable rows are left out."""
    rows = connection.execute("SELECT document FROM notified")
    return tuple(readable("notified", rows, lambda row: validate(NotifiedAlert, json.loads(validate(str, row[0])))))


def put(connection: sqlite3.Connection, notified: NotifiedAlert) -> None:
    """Insert or replace the row of this receiver and alert."""
    row = notified.receiver, notified.alert.key, json.dumps(asdict(notified))
    connection.execute("INSERT OR REPLACE INTO notified VALUES (?, ?, ?)", row)


def replace_all(connection: sqlite3.Connection, receiver: str, rows: Iterable[NotifiedAlert]) -> None:
    """Delete all rows of a receiver, and insert these."""
    connection.execute("DELETE FROM notified WHERE receiver = ?", (receiver,))
    for row in rows:
        put(connection, row)


def remove(connection: sqlite3.Connection, notified: NotifiedAlert) -> None:
    """Delete the row of this receiver and alert."""
    connection.execute(
        "DELETE FROM notified WHERE receiver = ? AND identity = ?", (notified.receiver, notified.alert.key)
    )
