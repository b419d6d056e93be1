"""Descriptions of tables in which a newer row replaces the row with the same key, and helpers for SQL statements."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

R = TypeVar("R")

MAX_COUNT = 2**53
"""Maximum value of a counter: the largest integer up to which floating point metrics are exact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreTable(Generic[R]):
    """Describes how rows of type R are written to one table.

    Writing a row twice has the same effect as writing it once.
    """

    name: str
    key: Callable[[R], Hashable]
    """Function that returns the key of a row, such as a uuid. A newer row replaces the older row with the same key."""
    put: Callable[[sqlite3.Connection, Iterable[R]], None]
    """Function that writes rows inside the caller's transaction."""
    moving: frozenset[str] = frozenset()
    """Fields that change at each poll, such as `last_wall`. If only these fields change, the row is written hourly."""


def insert(table: str, columns: Sequence[str]) -> str:
    """Return an INSERT statement for this table with a placeholder for each column."""
    names = ", ".join(f'"{column}"' for column in columns)
    return f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(columns))})"  # noqa: S608 - our own names


def select(table: str, columns: Sequence[str], rest: str = "") -> str:
    """Return a SELECT statement for these columns. `rest` is the SQL after the table name."""
    return f"SELECT {', '.join(columns)} FROM {table} {rest}"  # noqa: S608 - our own names


def count_of(column: str) -> str:
    """Return SQL for the value of a column that holds a count.

    The value is 0 if the cell is damaged and has no valid count, so that counting continues.
    """
    return f"CASE WHEN typeof({column}) = 'integer' AND {column} BETWEEN 0 AND {MAX_COUNT} THEN {column} ELSE 0 END"


def values(row: Any, columns: Sequence[str]) -> tuple[object, ...]:
    """Return the attributes of a row object that have the names of the columns, in the order of the columns."""
    return tuple(getattr(row, column) for column in columns)
