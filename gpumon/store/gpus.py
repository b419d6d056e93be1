"""Table `gpus`: every GPU that was ever present in this host."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping

from gpumon.model.stored_gpu import StoredGpu
from gpumon.store.stored_rows import StoreTable, read_records, readable, upsert

MAX_GPUS = 256
"""Maximum number of GPUs in the table. A limit is needed because GPUs are replaced over the life of a host."""
ACCEPTED = "accepted_gpus"
"""Key in table `meta` of the number of GPUs that the operator accepted."""


def put(connection: sqlite3.Connection, gpus: Iterable[StoredGpu]) -> None:
    """Insert or update one row for each GPU, by uuid.

    Above MAX_GPUS rows, delete GPUs that are no longer expected first, then the GPUs read least recently.
    """
    upsert(connection, "gpus", StoredGpu, gpus, key="uuid", kept={"first_wall"})
    connection.execute(
        "DELETE FROM gpus WHERE uuid NOT IN (SELECT uuid FROM gpus ORDER BY expected DESC, last_wall DESC LIMIT ?)",
        (MAX_GPUS,),
    )


TABLE: StoreTable[StoredGpu] = StoreTable(
    name="gpus", key=lambda gpu: gpu.uuid, put=put, moving=frozenset({"first_wall", "last_wall", "energy"})
)


def read(connection: sqlite3.Connection) -> tuple[StoredGpu, ...]:
    """Return all stored GPUs, the most recently read GPU last. Unreadable rows are left out."""
    return read_records(connection, "gpus", StoredGpu, "ORDER BY last_wall")


def accept(connection: sqlite3.Connection, count: int | None, gone: Iterable[str]) -> None:
    """Store the accepted number of GPUs, unless it is None.

    Mark the GPUs with the uuids `gone` as no longer expected.
    """
    connection.executemany("UPDATE gpus SET expected = 0 WHERE uuid = ?", [(uuid,) for uuid in gone])
    if count is not None:
        connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (ACCEPTED, str(count)))


def accept_lanes(connection: sqlite3.Connection, lanes: Mapping[str, float]) -> None:
    """Store the number of PCIe lanes that the operator accepted for GPUs. `lanes`: number by uuid."""
    rows = [(number, uuid) for uuid, number in lanes.items()]
    connection.executemany("UPDATE gpus SET lanes = ?, lanes_accepted = 1 WHERE uuid = ?", rows)


def accepted_count(connection: sqlite3.Connection) -> int | None:
    """Return the number of GPUs that the operator accepted; None if no number was ever accepted."""
    rows = connection.execute("SELECT value FROM meta WHERE key = ?", (ACCEPTED,))
    return next(readable("meta", rows, lambda row: int(row[0])), None)
