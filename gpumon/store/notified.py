"""Table `notified`: which receiver, such as Slack, was notified of which firing alert."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import asdict

from gpumon.model.notified_alert import NotifiedAlert, SentAlert
from gpumon.store.stored_rows import checked, readable


def read(connection: sqlite3.Connection) -> tuple[NotifiedAlert, ...]:
    """Return all rows of the table. Unreadable rows are left out."""
    rows = connection.execute("SELECT receiver, alert FROM notified")
    return tuple(readable("notified", rows, lambda row: NotifiedAlert(checked(str, row[0]), _alert(row[1]))))


def put(connection: sqlite3.Connection, notified: NotifiedAlert) -> None:
    """Insert a row: this receiver was notified that the alert fires."""
    row = notified.receiver, notified.alert.key, json.dumps(asdict(notified.alert))
    connection.execute("INSERT OR REPLACE INTO notified VALUES (?, ?, ?)", row)


def remove(connection: sqlite3.Connection, notified: NotifiedAlert) -> None:
    """Delete the alert's row, because this receiver was notified that the alert is resolved."""
    connection.execute(
        "DELETE FROM notified WHERE receiver = ? AND identity = ?", (notified.receiver, notified.alert.key)
    )


def _alert(text: str) -> SentAlert:
    """Return an alert from its JSON. Raise ValueError if it is damaged."""
    values = json.loads(checked(str, text))
    labels = tuple((str(name), str(value)) for name, value in values.pop("labels"))
    return SentAlert(labels=labels, **values)
