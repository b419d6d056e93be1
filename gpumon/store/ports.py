"""Table `ports`: every InfiniBand or RoCE port that was ever present in this host."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping

from gpumon.model.port_record import PortRecord
from gpumon.store.stored_rows import StoreTable, read_records, upsert

MAX_PORTS = 256
"""Maximum number of ports in the table. A limit is needed because cards are replaced and virtual functions get new
names.
"""


def put(connection: sqlite3.Connection, ports: Iterable[PortRecord]) -> None:
    """Insert or update one row for each port, by `PortRecord.identity`.

    Above MAX_PORTS rows, delete ports that are not expected first, then the ports read least recently.
    """
    upsert(connection, "ports", PortRecord, ports, key="identity")
    connection.execute(
        "DELETE FROM ports WHERE identity NOT IN"
        " (SELECT identity FROM ports ORDER BY coalesce(expected, 0) DESC, last_wall DESC LIMIT ?)",
        (MAX_PORTS,),
    )


TABLE: StoreTable[PortRecord] = StoreTable(
    name="ports", key=lambda port: port.identity, put=put, moving=frozenset({"last_wall", "last_up"})
)


def read(connection: sqlite3.Connection) -> tuple[PortRecord, ...]:
    """Return all stored ports, the most recently read port last. Unreadable rows are left out."""
    return read_records(connection, "ports", PortRecord, "ORDER BY last_wall, identity")


def accept(connection: sqlite3.Connection, gone: Iterable[str], slow: Mapping[str, float]) -> None:
    """Mark the ports `gone` as no longer expected, and store the accepted speeds `slow`. Both are by identity."""
    connection.executemany("UPDATE ports SET speed = ? WHERE identity = ?", [(slow[port], port) for port in slow])
    connection.executemany("UPDATE ports SET expected = 0 WHERE identity = ?", [(port,) for port in gone])
