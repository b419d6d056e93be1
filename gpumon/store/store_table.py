"""A table whose rows are written whole, each under its key."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

R = TypeVar("R")

MAX_COUNT = 2**53
"""Maximum of a counter: metrics are floating point numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreTable(Generic[R]):
    """How the rows of one kind are written. Writing a row a second time changes nothing."""

    name: str
    key: Callable[[R], Hashable]
    """Return the key of a row: the newer of two rows with one key replaces the older one."""
    put: Callable[[sqlite3.Connection, Iterable[R]], None]
    """Write the rows, inside the caller's transaction."""
    moving: frozenset[str] = frozenset()
    """Fields that change at each poll, `last_wall` among them: a change of these alone is written once an hour."""


def insert(table: str, columns: Sequence[str]) -> str:
    """Return an INSERT statement with a placeholder for each column."""
    names = ", ".join(f'"{column}"' for column in columns)
    return f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(columns))})"  # noqa: S608 - our own names


def select(table: str, columns: Sequence[str], rest: str = "") -> str:
    """Return a SELECT statement for these columns."""
    return f"SELECT {', '.join(columns)} FROM {table} {rest}"  # noqa: S608 - our own names


def count_of(column: str) -> str:
    """Return SQL for the count in a column; for 0 if a damaged cell has none, so that counting continues."""
    return f"CASE WHEN typeof({column}) = 'integer' AND {column} BETWEEN 0 AND {MAX_COUNT} THEN {column} ELSE 0 END"


def values(row: Any, columns: Sequence[str]) -> tuple[object, ...]:
    """Return the attributes of a row that are named like the columns."""
    return tuple(getattr(row, column) for column in columns)
