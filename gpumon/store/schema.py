"""Schema of the store, as a list of migrations. To change the schema, add a migration; never edit a released one.

Each migration changes at least one CREATE statement, because `migrate` applies nothing if the schema is complete.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path

from gpumon.store.store_error import StoreError, damage_error

APPLICATION_ID = 0x67706D6E
"""Application id in the SQLite header of every store ("gpmn"). A file without it is damaged or not a store."""
_RENAMED_IN_RESULTS = {
    **{name: f"{name}_bytes_per_second" for name in ("busbw", "baseline", "spread", "best", "expected", "bandwidth")},
    "low": "below_reference",
    "sentence": "message",
    "wrong": "wrong_elements",
    "spoilt": "wrong_send_elements",
}
"""New names of members of stored probe results, by the names that migration 6 replaces."""
_MEASURED_QUANTITIES = {
    "collective": "operation",
    "bytes": "size",
    "algbw_bytes_per_second": "raw_value",
    **{f"{name}_bytes_per_second": name for name in ("baseline", "spread", "best", "expected")},
}
"""The same for migration 7, since which a measurement is of any quantity."""
_QUANTITY = """'"busbw_bytes_per_second":', '"quantity":"busbw","unit":"bytes_per_second","value":'"""


def _with_new_names(column: str, names: Mapping[str, str]) -> str:
    """Return an SQL expression for the compact JSON in `column` with these members renamed.

    A string in JSON cannot contain `"name":`, because its quotation marks are escaped.
    """
    for old, new in names.items():
        column = f"""replace({column}, '"{old}":', '"{new}":')"""
    return column


MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
        """
        CREATE TABLE error_events (
            number INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            kind TEXT NOT NULL,
            code INTEGER NOT NULL,
            bus_id TEXT NOT NULL,
            uuid TEXT,
            boot_id TEXT NOT NULL,
            first_at REAL NOT NULL,
            last_at REAL NOT NULL,
            first_wall REAL NOT NULL,
            last_wall REAL NOT NULL,
            nvml INTEGER NOT NULL,
            kmsg INTEGER NOT NULL,
            unnumbered INTEGER NOT NULL,
            texts TEXT NOT NULL,
            text TEXT NOT NULL,
            fatal INTEGER,
            historical INTEGER NOT NULL,
            gpu_instance_id INTEGER,
            compute_instance_id INTEGER
        )
        """,
        "CREATE INDEX error_events_by_wall ON error_events (last_wall)",
        "CREATE INDEX error_events_by_code ON error_events (code, bus_id)",
        """
        CREATE TABLE error_counters (
            kind TEXT NOT NULL,
            device TEXT NOT NULL,
            code INTEGER NOT NULL,
            count INTEGER NOT NULL,
            last_wall REAL NOT NULL,
            PRIMARY KEY (kind, device, code)
        ) WITHOUT ROWID
        """,
        """
        CREATE TABLE probe_runs (
            number INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            probe TEXT NOT NULL,
            started REAL NOT NULL,
            outcome TEXT NOT NULL,
            document TEXT NOT NULL
        )
        """,
        "CREATE INDEX probe_runs_by_outcome ON probe_runs (probe, outcome, started)",
        "CREATE INDEX probe_runs_by_started ON probe_runs (started)",
        "CREATE INDEX probe_runs_by_probe ON probe_runs (probe, started)",
        """
        CREATE TABLE probe_counters (
            probe TEXT NOT NULL,
            outcome TEXT NOT NULL,
            reason TEXT NOT NULL,
            count INTEGER NOT NULL,
            PRIMARY KEY (probe, outcome, reason)
        ) WITHOUT ROWID
        """,
        """
        CREATE TABLE verdicts (
            check_name TEXT NOT NULL,
            device TEXT NOT NULL,
            document TEXT NOT NULL,
            PRIMARY KEY (check_name, device)
        ) WITHOUT ROWID
        """,
        """
        CREATE TABLE verdict_transitions (
            number INTEGER PRIMARY KEY,
            wall REAL NOT NULL,
            at REAL NOT NULL,
            boot_id TEXT NOT NULL,
            check_name TEXT NOT NULL,
            device TEXT NOT NULL,
            change TEXT NOT NULL,
            cleared_by TEXT,
            note TEXT NOT NULL,
            muted INTEGER NOT NULL,
            document TEXT NOT NULL
        )
        """,
        "CREATE INDEX verdict_transitions_by_verdict ON verdict_transitions (check_name, device, wall)",
        "CREATE INDEX verdict_transitions_by_wall ON verdict_transitions (wall)",
        """
        CREATE TABLE gpus (
            uuid TEXT PRIMARY KEY,
            bus_id TEXT NOT NULL,
            serial TEXT NOT NULL,
            name TEXT NOT NULL,
            first_wall REAL NOT NULL,
            last_wall REAL NOT NULL,
            gpu INTEGER,
            boot_id TEXT NOT NULL,
            vbios TEXT NOT NULL,
            inforom TEXT NOT NULL,
            gsp TEXT NOT NULL,
            nvlinks INTEGER,
            energy REAL,
            expected INTEGER NOT NULL
        ) WITHOUT ROWID
        """,
        """
        CREATE TABLE ports (
            identity TEXT PRIMARY KEY,
            device TEXT NOT NULL,
            port TEXT NOT NULL,
            bus_id TEXT NOT NULL,
            guid TEXT NOT NULL,
            link_layer TEXT NOT NULL,
            board TEXT NOT NULL,
            firmware TEXT NOT NULL,
            first_wall REAL NOT NULL,
            last_wall REAL NOT NULL,
            first_up REAL,
            last_up REAL,
            speed REAL,
            expected INTEGER
        ) WITHOUT ROWID
        """,
        """
        CREATE TABLE agent_runs (
            number INTEGER PRIMARY KEY,
            boot_id TEXT NOT NULL,
            version TEXT NOT NULL,
            began REAL NOT NULL,
            began_at REAL NOT NULL,
            last REAL NOT NULL,
            stopped REAL,
            planned INTEGER NOT NULL
        )
        """,
        """
        CREATE TABLE windows (
            number INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            kind TEXT NOT NULL,
            bus_id TEXT NOT NULL,
            owner TEXT NOT NULL,
            reason TEXT NOT NULL,
            "by" TEXT NOT NULL,
            start REAL NOT NULL,
            start_at REAL NOT NULL,
            until REAL NOT NULL,
            deadline REAL NOT NULL,
            boot_id TEXT NOT NULL,
            ended REAL,
            ended_by TEXT NOT NULL
        )
        """,
        """
        CREATE TABLE audit (
            number INTEGER PRIMARY KEY,
            wall REAL NOT NULL,
            request TEXT NOT NULL,
            reason TEXT NOT NULL,
            client TEXT NOT NULL,
            uid INTEGER,
            login_uid INTEGER,
            status INTEGER
        )
        """,
    ),
    ("ALTER TABLE ports ADD COLUMN role TEXT",),
    (
        "ALTER TABLE gpus ADD COLUMN lanes REAL",
        "ALTER TABLE gpus ADD COLUMN lanes_accepted INTEGER NOT NULL DEFAULT 0",
    ),
    (
        """
        CREATE TABLE notified (
            receiver TEXT NOT NULL,
            identity TEXT NOT NULL,
            alert TEXT NOT NULL,
            PRIMARY KEY (receiver, identity)
        ) WITHOUT ROWID
        """,
    ),
    ("DELETE FROM notified", "ALTER TABLE notified RENAME COLUMN alert TO document"),
    (
        "ALTER TABLE probe_runs RENAME COLUMN document TO result",
        "UPDATE probe_runs SET result = " + _with_new_names("result", _RENAMED_IN_RESULTS),  # noqa: S608 - our own names
    ),
    (
        "ALTER TABLE probe_runs RENAME COLUMN result TO run",
        f"UPDATE probe_runs SET run = replace({_with_new_names('run', _MEASURED_QUANTITIES)}, {_QUANTITY})",  # noqa: S608
    ),
    (
        """
        CREATE TABLE allocations (
            number INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            uuid TEXT NOT NULL,
            began REAL NOT NULL,
            last_wall REAL NOT NULL,
            ended INTEGER NOT NULL,
            allocation TEXT NOT NULL
        )
        """,
        "CREATE INDEX allocations_by_last_wall ON allocations (last_wall)",
    ),
)


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Apply the missing migrations in one transaction.

    Raise StoreError if a newer gpumon wrote the store, or if the schema is incomplete and its version is damaged.
    If the schema is complete, nothing is applied, even if the stored version is damaged and too low.
    """
    version = _version(connection)
    if isinstance(version, int) and version > len(MIGRATIONS):
        problem = f"a newer gpumon has written it (schema {version}, this gpumon supports {len(MIGRATIONS)})"
        raise StoreError(path, problem, "install that gpumon again, or set --store.path to another place")
    if is_intact(connection):
        return
    if version is not None and (not isinstance(version, int) or version < 1):
        raise damage_error(path, f"its schema has the version {version!r}")
    with connection:  # commits, or rolls back if an exception is raised
        connection.execute("BEGIN IMMEDIATE")
        _apply(connection, version or 0)


def is_intact(connection: sqlite3.Connection) -> bool:
    """Return True if the schema of this database is the one that the migrations create."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as fresh:
        _apply(fresh, 0)
        return _statements(connection) == _statements(fresh)


def _statements(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    return connection.execute("SELECT name, sql FROM sqlite_master WHERE sql NOT NULL ORDER BY name").fetchall()


def _apply(connection: sqlite3.Connection, version: int) -> None:
    if version == 0:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("CREATE TABLE migrations (version INTEGER PRIMARY KEY, applied REAL NOT NULL)")
    for number, statements in enumerate(MIGRATIONS[version:], version + 1):
        for statement in statements:
            connection.execute(statement)
        connection.execute("INSERT INTO migrations VALUES (?, ?)", (number, time.time()))


def _version(connection: sqlite3.Connection) -> object:
    """Return the stored number of the last applied migration, which may be damaged; None for an empty file."""
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if not tables:
        return None
    (version,) = connection.execute("SELECT max(version) FROM migrations").fetchone()
    return version or 0
