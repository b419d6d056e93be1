"""Rows of maintenances. Inside the caller's transaction."""

from __future__ import annotations

import sqlite3

from gpumon.maintenance import MOST_REMEMBERED, Known, Maintenance


def keep(connection: sqlite3.Connection, one: Maintenance) -> None:
    """As it is now: two never begin at the same time."""
    connection.execute(
        "INSERT INTO maintenance (began, began_at, until, deadline, boot_id, reason, asker, ended)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (began) DO UPDATE SET began_at = excluded.began_at, until = excluded.until,"
        " deadline = excluded.deadline, boot_id = excluded.boot_id, ended = excluded.ended",
        (one.began, one.began_at, one.until, one.deadline, one.boot_id, one.reason, one.by, one.ended),
    )
    connection.execute(
        "DELETE FROM maintenance WHERE number <= (SELECT max(number) FROM maintenance) - ?", (MOST_REMEMBERED,)
    )


def recent(connection: sqlite3.Connection) -> Known:
    """The newest last."""
    rows = connection.execute(
        "SELECT began, began_at, until, deadline, boot_id, reason, asker, ended FROM maintenance ORDER BY number"
    ).fetchall()
    return tuple(
        Maintenance(
            began=began,
            began_at=began_at,
            until=until,
            deadline=deadline,
            boot_id=boot_id,
            reason=reason,
            by=asker,
            ended=ended,
        )
        for began, began_at, until, deadline, boot_id, reason, asker, ended in rows
    )
