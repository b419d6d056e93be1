"""Table `agent_runs`: one row for each run of the agent, with its start and its stop."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from gpumon.health.agent_runs import AgentRun
from gpumon.store.stored_rows import StoreTable, columns_of, insert, read_records, values

MAX_ROWS = 1000

_COLUMNS = columns_of(AgentRun)


def put(connection: sqlite3.Connection, agent_runs: Iterable[AgentRun]) -> None:
    """Insert or update one row for each of these agent runs, and delete the oldest rows beyond MAX_ROWS."""
    for agent_run in agent_runs:
        changed = connection.execute(
            "UPDATE agent_runs SET last = ?, stopped = ?, planned = ? WHERE boot_id = ? AND began_at = ?",
            values(agent_run, ("last", "stopped", "planned", "boot_id", "began_at")),
        )
        if not changed.rowcount:
            connection.execute(insert("agent_runs", _COLUMNS), values(agent_run, _COLUMNS))
    connection.execute("DELETE FROM agent_runs WHERE number <= (SELECT max(number) FROM agent_runs) - ?", (MAX_ROWS,))


TABLE: StoreTable[AgentRun] = StoreTable(name="agent_runs", key=lambda run: run.began[:2], put=put)


def read(connection: sqlite3.Connection, limit: int) -> tuple[AgentRun, ...]:
    """Return the newest `limit` runs of the agent, the newest last."""
    newest_first = read_records(connection, "agent_runs", AgentRun, "ORDER BY number DESC LIMIT ?", (limit,))
    return newest_first[::-1]
