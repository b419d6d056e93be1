"""Rows of ports: every InfiniBand or RoCE port that was ever here. Inside the caller's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import fields

from gpumon.model.port_record import PortRecord

MOST_PORTS = 256
"""Ports that are remembered: cards are replaced, and virtual functions come and go."""

_COLUMNS = tuple(field.name for field in fields(PortRecord))


def put(connection: sqlite3.Connection, port: PortRecord) -> None:
    """Remember it by its identity."""
    connection.execute(
        f"INSERT OR REPLACE INTO ports ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})",  # noqa: S608 - our own
        [getattr(port, name) for name in _COLUMNS],
    )


def prune(connection: sqlite3.Connection) -> None:
    """Those seen last stay, and before them those that are expected."""
    connection.execute(
        "DELETE FROM ports WHERE identity NOT IN"
        " (SELECT identity FROM ports ORDER BY coalesce(expected, 0) DESC, last_wall DESC LIMIT ?)",
        (MOST_PORTS,),
    )


def every(connection: sqlite3.Connection) -> tuple[PortRecord, ...]:
    """The one seen last stands last."""
    rows = connection.execute(f"SELECT {', '.join(_COLUMNS)} FROM ports ORDER BY last_wall, identity")  # noqa: S608 - our own
    found = (dict(zip(_COLUMNS, row, strict=True)) for row in rows)
    return tuple(PortRecord(**one | {"expected": _flag(one["expected"])}) for one in found)


def accept(connection: sqlite3.Connection, down: Iterable[str], slow: Mapping[str, float]) -> None:
    """These are expected no more, by identity, and those no faster than this."""
    connection.executemany("UPDATE ports SET speed = ? WHERE identity = ?", [(slow[one], one) for one in slow])
    connection.executemany("UPDATE ports SET expected = 0 WHERE identity = ?", [(one,) for one in down])


def _flag(value: int | None) -> bool | None:
    return None if value is None else bool(value)
