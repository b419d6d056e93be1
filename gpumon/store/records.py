"""Tables with one row for each GPU, port, time window, run of the agent, request and notified alert.

Also deletes the oldest events, verdict transitions and probe runs. Counters are never deleted.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gpumon.model.durations import LATEST
from gpumon.model.records import AgentRun, NotifiedAlert, PortRecord, StoredGpu
from gpumon.model.request import AuditEntry
from gpumon.model.time_window import MAX_ENDED, TimeWindow, Windows
from gpumon.store import allocations, error_events, probe_runs, verdicts
from gpumon.store.stored_rows import (
    StoreTable,
    columns_of,
    insert,
    read_records,
    readable,
    select,
    upsert,
    validate,
    values,
)

MAX_DEVICES = 256
"""Maximum number of GPUs, and of ports. A limit is needed because GPUs and cards are replaced over the life of a host,
and virtual functions get new names.
"""
MAX_AGENT_RUNS = 1000
MAX_AUDIT_ENTRIES = 10_000
DAY = 86400.0
MAX_STEP_SECONDS = 6 * 3600.0
"""Maximum seconds by which the time used for pruning may advance from one pruning to the next, an hour later. Thus few
rows are deleted if the clock is wrong.
"""


# GPUs


def put_gpus(connection: sqlite3.Connection, gpus: Iterable[StoredGpu]) -> None:
    """Insert or update the row of each GPU. Above MAX_DEVICES rows, delete unexpected ones first, then the oldest."""
    upsert(connection, "gpus", StoredGpu, gpus, key="uuid", kept={"first_wall"})
    connection.execute(
        "DELETE FROM gpus WHERE uuid NOT IN (SELECT uuid FROM gpus ORDER BY expected DESC, last_wall DESC LIMIT ?)",
        (MAX_DEVICES,),
    )


GPUS: StoreTable[StoredGpu] = StoreTable(
    key=lambda gpu: gpu.uuid, put=put_gpus, moving=frozenset({"first_wall", "last_wall", "energy"})
)


def read_gpus(connection: sqlite3.Connection) -> tuple[StoredGpu, ...]:
    """Return all stored GPUs, the most recently read GPU last."""
    return read_records(connection, "gpus", StoredGpu, "ORDER BY last_wall")


def accept_gpus(connection: sqlite3.Connection, count: int | None, gone: Iterable[str]) -> None:
    """Store the accepted number of GPUs, unless it is None, and that the GPUs with uuids `gone` are not expected."""
    connection.executemany("UPDATE gpus SET expected = 0 WHERE uuid = ?", [(uuid,) for uuid in gone])
    if count is not None:
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('accepted_gpus', ?)", (str(count),))


def accept_lanes(connection: sqlite3.Connection, lanes: Mapping[str, float]) -> None:
    """Store the number of PCIe lanes that the operator accepted for GPUs. `lanes`: number by uuid."""
    rows = [(number, uuid) for uuid, number in lanes.items()]
    connection.executemany("UPDATE gpus SET lanes = ?, lanes_accepted = 1 WHERE uuid = ?", rows)


def accepted_count(connection: sqlite3.Connection) -> int | None:
    """Return the number of GPUs that the operator accepted; None if no number was ever accepted."""
    rows = connection.execute("SELECT value FROM meta WHERE key = 'accepted_gpus'")
    return next(readable("meta", rows, lambda row: int(row[0])), None)


# InfiniBand and RoCE ports


def put_ports(connection: sqlite3.Connection, ports: Iterable[PortRecord]) -> None:
    """Insert or update the row of each port. Above MAX_DEVICES rows, delete unexpected ones first, then the oldest."""
    upsert(connection, "ports", PortRecord, ports, key="identity")
    connection.execute(
        "DELETE FROM ports WHERE identity NOT IN"
        " (SELECT identity FROM ports ORDER BY coalesce(expected, 0) DESC, last_wall DESC LIMIT ?)",
        (MAX_DEVICES,),
    )


PORTS: StoreTable[PortRecord] = StoreTable(
    key=lambda port: port.identity, put=put_ports, moving=frozenset({"last_wall", "last_up"})
)


def read_ports(connection: sqlite3.Connection) -> tuple[PortRecord, ...]:
    """Return all stored ports, the most recently read port last."""
    return read_records(connection, "ports", PortRecord, "ORDER BY last_wall, identity")


def accept_ports(connection: sqlite3.Connection, gone: Iterable[str], slow: Mapping[str, float]) -> None:
    """Mark the ports `gone` as no longer expected, and store the accepted speeds `slow`. Both are by identity."""
    connection.executemany("UPDATE ports SET speed = ? WHERE identity = ?", [(slow[port], port) for port in slow])
    connection.executemany("UPDATE ports SET expected = 0 WHERE identity = ?", [(port,) for port in gone])


# Releases, holds and maintenances


def put_windows(connection: sqlite3.Connection, windows: Iterable[TimeWindow]) -> None:
    """Insert or update the row of each time window. Keep only the newest MAX_ENDED of each kind that have ended."""
    for window in windows:
        upsert(connection, "windows", TimeWindow, [window], key="id")
        connection.execute(
            "DELETE FROM windows WHERE kind = ? AND ended IS NOT NULL"
            " AND number NOT IN (SELECT number FROM windows WHERE kind = ? ORDER BY number DESC LIMIT ?)",
            (window.kind, window.kind, MAX_ENDED),
        )


WINDOWS: StoreTable[TimeWindow] = StoreTable(key=lambda window: window.id, put=put_windows)


def read_windows(connection: sqlite3.Connection) -> Windows:
    """Return all stored time windows, the newest last."""
    columns = [f'"{column}"' for column in columns_of(TimeWindow)]  # BY is a keyword of SQL
    rows = connection.execute(select("windows", columns, "ORDER BY number"))
    return tuple(readable("windows", rows, _window))


def _window(row: Sequence[Any]) -> TimeWindow:
    """Return a time window. Raise ValueError for an impossible time: a release must not stop samplers for ever."""
    window = validate(TimeWindow, dict(zip(columns_of(TimeWindow), row, strict=True)))
    moments = (*window.started[1:], *window.deadline[1:], window.ended or 0.0)
    if max(map(abs, moments)) > LATEST:
        raise ValueError(f"{window.kind} {window.id} has a time that cannot be true")
    return window


# Runs of the agent, each with its start and its stop


def put_agent_runs(connection: sqlite3.Connection, agent_runs: Iterable[AgentRun]) -> None:
    """Insert or update one row for each of these agent runs, and delete the oldest rows beyond MAX_AGENT_RUNS."""
    columns = columns_of(AgentRun)
    for agent_run in agent_runs:
        changed = connection.execute(
            "UPDATE agent_runs SET last = ?, stopped = ?, planned = ? WHERE boot_id = ? AND began_at = ?",
            values(agent_run, ("last", "stopped", "planned", "boot_id", "began_at")),
        )
        if not changed.rowcount:
            connection.execute(insert("agent_runs", columns), values(agent_run, columns))
    _delete_oldest(connection, "agent_runs", MAX_AGENT_RUNS)


AGENT_RUNS: StoreTable[AgentRun] = StoreTable(key=lambda run: run.began[:2], put=put_agent_runs)


def read_agent_runs(connection: sqlite3.Connection, limit: int) -> tuple[AgentRun, ...]:
    """Return the newest `limit` runs of the agent, the newest last."""
    newest_first = read_records(connection, "agent_runs", AgentRun, "ORDER BY number DESC LIMIT ?", (limit,))
    return newest_first[::-1]


# Authorized requests to change the state of the agent or to start work, with their clients


def put_audit_entry(connection: sqlite3.Connection, entry: AuditEntry) -> None:
    """Insert a row for a request, and delete the oldest rows beyond MAX_AUDIT_ENTRIES."""
    columns = columns_of(AuditEntry)
    connection.execute(insert("audit", columns), values(entry, columns))
    _delete_oldest(connection, "audit", MAX_AUDIT_ENTRIES)


def read_audit_entries(connection: sqlite3.Connection, limit: int) -> tuple[AuditEntry, ...]:
    """Return the newest `limit` requests, the newest first."""
    return read_records(connection, "audit", AuditEntry, "ORDER BY number DESC LIMIT ?", (limit,))


# Alerts of which a receiver, such as a webhook, was notified or is yet to be notified


def put_notified(connection: sqlite3.Connection, notified: NotifiedAlert) -> None:
    """Insert or replace the row of this receiver and alert."""
    row = notified.receiver, notified.alert.key, json.dumps(asdict(notified))
    connection.execute("INSERT OR REPLACE INTO notified VALUES (?, ?, ?)", row)


def replace_notified(connection: sqlite3.Connection, receiver: str, rows: Iterable[NotifiedAlert]) -> None:
    """Delete all rows of a receiver, and insert these."""
    connection.execute("DELETE FROM notified WHERE receiver = ?", (receiver,))
    for row in rows:
        put_notified(connection, row)


def remove_notified(connection: sqlite3.Connection, notified: NotifiedAlert) -> None:
    """Delete the row of this receiver and alert."""
    connection.execute(
        "DELETE FROM notified WHERE receiver = ? AND identity = ?", (notified.receiver, notified.alert.key)
    )


def read_notified(connection: sqlite3.Connection) -> tuple[NotifiedAlert, ...]:
    """Return the alerts of all receivers."""
    rows = connection.execute("SELECT document FROM notified")
    return tuple(readable("notified", rows, lambda row: validate(NotifiedAlert, json.loads(validate(str, row[0])))))


def _delete_oldest(connection: sqlite3.Connection, table: str, limit: int) -> None:
    connection.execute(f"DELETE FROM {table} WHERE number <= (SELECT max(number) FROM {table}) - ?", (limit,))  # noqa: S608 - our own names


# Retention of the histories


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Limits, in days and in rows, for stored events, verdict transitions, probe runs and allocations."""

    days: float = 90
    rows: int = 100_000
    """Maximum number of rows in each of the four tables."""


def prune(connection: sqlite3.Connection, retention: Retention, now: float) -> None:
    """Delete rows of the histories beyond the retention. `now` is in seconds since the epoch."""
    # At boot the clock may be days ahead.
    rows = connection.execute("SELECT value FROM meta WHERE key = 'pruned'")
    last = next(readable("meta", rows, lambda row: validate(float, row[0])), now)
    plausible = min(now, last + MAX_STEP_SECONDS)
    connection.execute("INSERT OR REPLACE INTO meta VALUES ('pruned', ?)", (str(plausible),))
    oldest = plausible - retention.days * DAY
    error_events.prune(connection, oldest, retention.rows)
    verdicts.prune(connection, oldest, retention.rows)
    probe_runs.prune(connection, oldest, retention.rows)
    allocations.prune(connection, oldest, retention.rows)
