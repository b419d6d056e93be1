"""Table `notified`: alerts of which a receiver, such as Slack, was notified or is yet to be notified."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import asdict
from typing import Any

from gpumon.model.notified_alert import NotifiedAlert, SentAlert
from gpumon.store.stored_rows import checked, readable


def read(connection: sqlite3.Connection) -> tuple[NotifiedAlert, ...]:
    """Return all rows of the table. Unreadable rows are left out."""
    rows = connection.execute("SELECT receiver, alert FROM notified")
    return tuple(readable("notified", rows, lambda row: _notified(*row)))


def put(connection: sqlite3.Connection, notified: NotifiedAlert) -> None:
    """Insert or replace the row of this receiver and alert."""
    document = asdict(notified.alert) | {name: getattr(notified, name) for name in _STATE}
    row = notified.receiver, notified.alert.key, json.dumps(document)
    connection.execute("INSERT OR REPLACE INTO notified VALUES (?, ?, ?)", row)


def remove(connection: sqlite3.Connection, notified: NotifiedAlert) -> None:
    """Delete the row of this receiver and alert."""
    connection.execute(
        "DELETE FROM notified WHERE receiver = ? AND identity = ?", (notified.receiver, notified.alert.key)
    )


_STATE = ("delivered", "ended", "failing_since")


def _notified(receiver: Any, text: Any) -> NotifiedAlert:
    """Return a row from the name of the receiver and its JSON. Raise ValueError if it is damaged."""
    values = json.loads(checked(str, text))
    state = {name: values.pop(name) for name in _STATE if name in values}
    labels = tuple((str(name), str(value)) for name, value in values.pop("labels"))
    return NotifiedAlert(checked(str, receiver), SentAlert(labels=labels, **values), **state)
