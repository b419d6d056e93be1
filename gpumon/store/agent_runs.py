"""Rows of the agent's lives. Inside the caller's transaction."""

from __future__ import annotations

import sqlite3

from gpumon.health.agent_runs import AgentRun

MOST = 1000
"""Lives that are kept."""


def keep(connection: sqlite3.Connection, agent_run: AgentRun) -> None:
    """A life as it is now: the row that it has, or a new one."""
    changed = connection.execute(
        "UPDATE lives SET last = ?, stopped = ?, planned = ? WHERE boot_id = ? AND began_at = ?",
        (agent_run.last, agent_run.stopped, agent_run.planned, agent_run.boot_id, agent_run.began_at),
    )
    if not changed.rowcount:
        connection.execute(
            "INSERT INTO lives (boot_id, version, began, began_at, last, stopped, planned)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                agent_run.boot_id,
                agent_run.version,
                agent_run.began,
                agent_run.began_at,
                agent_run.last,
                agent_run.stopped,
                agent_run.planned,
            ),
        )
        connection.execute("DELETE FROM lives WHERE number <= (SELECT max(number) FROM lives) - ?", (MOST,))


def recent(connection: sqlite3.Connection, limit: int) -> tuple[AgentRun, ...]:
    """The newest last."""
    rows = connection.execute(
        "SELECT boot_id, version, began, began_at, last, stopped, planned FROM lives ORDER BY number DESC LIMIT ?",
        (limit,),
    ).fetchall()
    return tuple(
        AgentRun(
            boot_id=boot_id,
            version=version,
            began=began,
            began_at=began_at,
            last=last,
            stopped=stopped,
            planned=bool(planned),
        )
        for boot_id, version, began, began_at, last, stopped, planned in reversed(rows)
    )
