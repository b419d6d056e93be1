"""Rows of boards: every GPU that was ever here. Inside the caller's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import fields

from gpumon.model.stored_gpu import StoredGpu

MOST_BOARDS = 256
"""GPUs that are remembered: boards are replaced, and a host may live long."""
ACCEPTED = "accepted_gpus"
"""Key in `meta`: how many GPUs a person has accepted."""

_COLUMNS = tuple(field.name for field in fields(StoredGpu))
_FIRST = frozenset({"uuid", "first_wall"})


def put(connection: sqlite3.Connection, board: StoredGpu) -> None:
    """Remember it by its uuid; when it was first seen stays."""
    updates = ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS if name not in _FIRST)
    connection.execute(
        f"INSERT INTO boards ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"  # noqa: S608 - our own
        f" ON CONFLICT DO UPDATE SET {updates}",
        [getattr(board, name) for name in _COLUMNS],
    )


def prune(connection: sqlite3.Connection) -> None:
    """Those seen last stay, and before them those that are expected."""
    connection.execute(
        "DELETE FROM boards WHERE uuid NOT IN (SELECT uuid FROM boards ORDER BY expected DESC, last_wall DESC LIMIT ?)",
        (MOST_BOARDS,),
    )


def every(connection: sqlite3.Connection) -> tuple[StoredGpu, ...]:
    """Of those at one address, the one seen last stands last."""
    rows = connection.execute(f"SELECT {', '.join(_COLUMNS)} FROM boards ORDER BY last_wall")  # noqa: S608 - our own
    found = (dict(zip(_COLUMNS, row, strict=True)) for row in rows)
    return tuple(StoredGpu(**values | {"expected": bool(values["expected"])}) for values in found)


def accept(connection: sqlite3.Connection, count: int | None, gone: Iterable[str]) -> None:
    """So many GPUs are all there are, if somebody says so; these uuids are expected no more."""
    connection.executemany("UPDATE boards SET expected = 0 WHERE uuid = ?", [(uuid,) for uuid in gone])
    if count is not None:
        connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (ACCEPTED, str(count)))


def accepted(connection: sqlite3.Connection) -> int | None:
    """How many GPUs a person has accepted."""
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (ACCEPTED,)).fetchone()
    return None if row is None else int(row[0])
