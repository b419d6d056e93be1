"""TABLE: the migrations. A change of the schema is added as a row; rows that were released never change."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from gpumon.store import APPLICATION_ID
from gpumon.store.errors import StoreError

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE xid_events (
            id INTEGER PRIMARY KEY,
            boot_id TEXT NOT NULL,
            bus_id TEXT NOT NULL,
            uuid TEXT,
            xid INTEGER NOT NULL,
            at REAL NOT NULL,
            wall REAL NOT NULL,
            source TEXT NOT NULL,
            UNIQUE (bus_id, xid, source, at, wall)
        )
        """,
        "CREATE INDEX xid_events_by_wall ON xid_events (wall)",
        """
        CREATE TABLE xid_counters (
            uuid TEXT NOT NULL,
            xid INTEGER NOT NULL,
            count INTEGER NOT NULL,
            last_wall REAL NOT NULL,
            PRIMARY KEY (uuid, xid)
        ) WITHOUT ROWID
        """,
        """
        CREATE TABLE probe_results (
            number INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            probe TEXT NOT NULL,
            started REAL NOT NULL,
            outcome TEXT NOT NULL,
            document TEXT NOT NULL
        )
        """,
        "CREATE INDEX probe_results_by_outcome ON probe_results (probe, outcome, started)",
        """
        CREATE TABLE probe_counters (
            probe TEXT NOT NULL,
            outcome TEXT NOT NULL,
            reason TEXT NOT NULL,
            count INTEGER NOT NULL,
            PRIMARY KEY (probe, outcome, reason)
        ) WITHOUT ROWID
        """,
        "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    ),
    (
        """
        CREATE TABLE events (
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
        "CREATE INDEX events_by_wall ON events (last_wall)",
        "CREATE INDEX events_by_code ON events (code, bus_id)",
        """
        INSERT INTO events
            SELECT id, 'v1-' || id, 'xid', xid, bus_id, uuid, boot_id, at, at, wall, wall,
                source = 'nvml', source != 'nvml', 0, '[]', '', NULL, 0, NULL, NULL
            FROM xid_events ORDER BY id
        """,
        "DROP TABLE xid_events",
        """
        CREATE TABLE sxid_counters (
            nvswitch TEXT NOT NULL,
            sxid INTEGER NOT NULL,
            count INTEGER NOT NULL,
            last_wall REAL NOT NULL,
            PRIMARY KEY (nvswitch, sxid)
        ) WITHOUT ROWID
        """,
        """
        CREATE TABLE boards (
            uuid TEXT PRIMARY KEY,
            bus_id TEXT NOT NULL,
            serial TEXT NOT NULL,
            name TEXT NOT NULL,
            first_wall REAL NOT NULL,
            last_wall REAL NOT NULL
        ) WITHOUT ROWID
        """,
    ),
    (
        """
        CREATE TABLE verdicts (
            check_name TEXT NOT NULL,
            device TEXT NOT NULL,
            document TEXT NOT NULL,
            PRIMARY KEY (check_name, device)
        ) WITHOUT ROWID
        """,
        """
        CREATE TABLE rulings (
            number INTEGER PRIMARY KEY,
            wall REAL NOT NULL,
            at REAL NOT NULL,
            boot_id TEXT NOT NULL,
            check_name TEXT NOT NULL,
            device TEXT NOT NULL,
            change TEXT NOT NULL,
            way TEXT,
            note TEXT NOT NULL,
            muted INTEGER NOT NULL,
            document TEXT NOT NULL
        )
        """,
        "CREATE INDEX rulings_by_verdict ON rulings (check_name, device, change, wall)",
        "CREATE INDEX rulings_by_wall ON rulings (wall)",
        *(
            f"ALTER TABLE boards ADD COLUMN {column}"
            for column in (
                "gpu INTEGER",  # its index
                "vbios TEXT NOT NULL DEFAULT ''",
                "inforom TEXT NOT NULL DEFAULT ''",
                "gsp TEXT NOT NULL DEFAULT ''",
                "nvlinks INTEGER",
                "energy REAL",  # joules by the driver's counter: less of it means that it began anew
                "boot_id TEXT NOT NULL DEFAULT ''",
                "expected INTEGER NOT NULL DEFAULT 1",  # 0: replaced, or a person has accepted that it is gone
            )
        ),
        """
        UPDATE boards SET expected = 0 WHERE EXISTS (
            SELECT 1 FROM boards AS later WHERE later.bus_id = boards.bus_id AND later.last_wall > boards.last_wall
        )
        """,
        """
        CREATE TABLE lives (
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
        CREATE TABLE maintenance (
            number INTEGER PRIMARY KEY,
            began REAL NOT NULL UNIQUE,
            until REAL NOT NULL,
            deadline REAL NOT NULL,
            boot_id TEXT NOT NULL,
            ended REAL,
            reason TEXT NOT NULL,
            asker TEXT NOT NULL
        )
        """,
    ),
    (
        "ALTER TABLE maintenance ADD COLUMN began_at REAL NOT NULL DEFAULT 0",
        "UPDATE maintenance SET began_at = deadline - (until - began)",
    ),
    (
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
    ),
    (
        """
        CREATE TABLE holds (
            number INTEGER PRIMARY KEY,
            began REAL NOT NULL,
            began_at REAL NOT NULL,
            until REAL NOT NULL,
            deadline REAL NOT NULL,
            boot_id TEXT NOT NULL,
            reason TEXT NOT NULL,
            asker TEXT NOT NULL,
            ended REAL,
            owner TEXT NOT NULL,
            UNIQUE (began, owner)
        )
        """,
    ),
    (
        "CREATE INDEX probe_results_by_started ON probe_results (started)",
        "CREATE INDEX probe_results_by_probe ON probe_results (probe, started)",
    ),
)


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the schema to the newest version, all of it or nothing. Raises StoreError for a schema from the future."""
    version = _version(connection)
    if version > len(MIGRATIONS):
        wrong = f"a newer gpumon has written it (schema {version}, this one knows {len(MIGRATIONS)})"
        raise StoreError(path, wrong, "install that gpumon again, or set --store.path to another place")
    if version == len(MIGRATIONS):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        _apply(connection, version)
    except BaseException:
        connection.rollback()
        raise
    connection.commit()


def _apply(connection: sqlite3.Connection, version: int) -> None:
    if version == 0:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("CREATE TABLE migrations (version INTEGER PRIMARY KEY, applied REAL NOT NULL)")
    for number, statements in enumerate(MIGRATIONS[version:], version + 1):
        for statement in statements:
            connection.execute(statement)
        connection.execute("INSERT INTO migrations VALUES (?, ?)", (number, time.time()))


def _version(connection: sqlite3.Connection) -> int:
    """0 for an empty file."""
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if not tables:
        return 0
    (version,) = connection.execute("SELECT max(version) FROM migrations").fetchone()
    return int(version)
