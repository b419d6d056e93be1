"""Writes and reads the rows of tables, which objects of Python describe.

Rows are validated when they are read, because SQLite stores any value in any cell and has no checksums. A row that
cannot be read is left out, counted and logged.
"""

from __future__ import annotations

import itertools
import logging
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, fields
from functools import cache, lru_cache
from typing import Annotated, Any, Generic, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from gpumon.health.verdict import Verdict, VerdictTransition
from gpumon.model.error_event import ErrorEvent
from gpumon.model.records import AgentRun
from gpumon.model.time_window import TimeWindow

R = TypeVar("R")

MAX_COUNT = 2**53
"""Maximum value of a counter: the largest integer up to which floating point metrics are exact."""
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]

INSTANTS: dict[type, dict[str, tuple[str, str, str]]] = {
    ErrorEvent: {"first": ("boot_id", "first_at", "first_wall"), "last": ("boot_id", "last_at", "last_wall")},
    TimeWindow: {"started": ("boot_id", "start_at", "start"), "deadline": ("boot_id", "deadline", "until")},
    AgentRun: {"began": ("boot_id", "began_at", "began")},
    Verdict: {"raised": ("since_boot", "since_at", "since"), "last_active": ("boot_id", "seen_at", "seen")},
    VerdictTransition: {"time": ("boot_id", "at", "wall")},
}
"""Columns of each Instant of a row object: its boot id, boot clock and wall time."""

log = logging.getLogger("gpumon.store")

MAX_KEY = 100
"""Maximum number of characters to log of the first column of an unreadable row."""
_LEFT_OUT: ContextVar[Counter[str] | None] = ContextVar("left_out", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreTable(Generic[R]):
    """Describes how rows of type R are written to one table. Writing a row twice has no further effect."""

    key: Callable[[R], Hashable]
    """Function that returns the key of a row, such as a uuid. A newer row replaces the older row with the same key."""
    put: Callable[[sqlite3.Connection, Iterable[R]], None]
    """Function that writes rows inside the caller's transaction."""
    moving: frozenset[str] = frozenset()
    """Fields that change at each poll, such as `last_wall`. If only these fields change, the row is written hourly."""


def insert(table: str, columns: Sequence[str]) -> str:
    """Return an INSERT statement for this table with a `?` for each column."""
    names = ", ".join(f'"{column}"' for column in columns)
    return f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(columns))})"  # noqa: S608 - our own names


def select(table: str, columns: Sequence[str], rest: str = "") -> str:
    """Return a SELECT statement for these columns. `rest` is the SQL after the table name."""
    return f"SELECT {', '.join(columns)} FROM {table} {rest}"  # noqa: S608 - our own names


def matching(query: Any, conditions: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """Return the SQL condition for those fields of a query that are not None, and its parameters by name."""
    parameters = asdict(query)
    where = " AND ".join(condition for name, condition in conditions.items() if parameters[name] is not None)
    parameters["before_wall"], parameters["before_number"] = query.before or (None, None)
    return where or "TRUE", parameters


def count_of(column: str) -> str:
    """Return SQL for the value of a column that holds a count; 0 if the cell is damaged, so that counting continues."""
    return f"CASE WHEN typeof({column}) = 'integer' AND {column} BETWEEN 0 AND {MAX_COUNT} THEN {column} ELSE 0 END"


def values(row: Any, columns: Sequence[str]) -> tuple[object, ...]:
    """Return the values of a row object in these columns."""
    document = flat(row)
    return tuple(document[column] for column in columns)


def flat(row: Any) -> dict[str, Any]:
    """Return the values of a row object by column. An Instant has three columns (INSTANTS)."""
    document: dict[str, Any] = {}
    instants = INSTANTS.get(type(row), {})
    for name in _field_names(type(row)):
        value = getattr(row, name)
        document |= zip(instants[name], value, strict=True) if name in instants else {name: value}
    return document


def columns_of(kind: Any) -> tuple[str, ...]:
    """Return the columns of a table that has one for each field of `kind`, and three for an Instant."""
    instants = INSTANTS.get(kind, {})
    columns = (instants.get(name, (name,)) for name in _field_names(kind))
    return tuple(dict.fromkeys(itertools.chain.from_iterable(columns)))


def _field_names(kind: Any) -> tuple[str, ...]:
    return kind._fields if issubclass(kind, tuple) else tuple(field.name for field in fields(kind))


def upsert(
    connection: sqlite3.Connection,
    table: str,
    kind: type[R],
    rows: Iterable[R],
    *,
    key: str,
    kept: Collection[str] = (),
) -> None:
    """Insert or update rows by the unique column `key`. Do not change the columns `kept` of a row that exists."""
    columns = columns_of(kind)
    updates = ", ".join(f'"{name}" = excluded."{name}"' for name in columns if name not in kept)
    connection.executemany(
        # SQLite before 3.35, such as that of RHEL 9, requires the column here.
        f"{insert(table, columns)} ON CONFLICT ({key}) DO UPDATE SET {updates}",
        [values(row, columns) for row in rows],
    )


@contextmanager
def count_left_out() -> Iterator[Counter[str]]:
    """Return a context manager that counts, by table, the unreadable rows that are left out within its block."""
    left_out = Counter[str]()
    token = _LEFT_OUT.set(left_out)
    try:
        yield left_out
    finally:
        _LEFT_OUT.reset(token)


def readable(table: str, rows: Iterable[Sequence[Any]], build: Callable[[Sequence[Any]], R]) -> Iterator[R]:
    """Yield `build(row)` for each row. If `build` raises, leave out the row, count it, and log its first column."""
    for row in rows:
        try:
            yield build(row)
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            left_out = _LEFT_OUT.get()
            if left_out is not None:
                left_out[table] += 1
            _warn(table, str(row[0])[:MAX_KEY], _reason(error))


def read_records(
    connection: sqlite3.Connection, table: str, kind: type[R], rest: str, parameters: Sequence[object] = ()
) -> tuple[R, ...]:
    """Return an object of type `kind` for each readable row of a table. `rest` is the SQL after the table name."""
    columns = columns_of(kind)
    rows = connection.execute(select(table, columns, rest), parameters)
    return tuple(readable(table, rows, lambda row: validate(kind, dict(zip(columns, row, strict=True)))))


def validate(kind: type[R], document: object) -> R:
    """Return a value read from the store, such as a dict of columns, as an object of type `kind`. Raise ValueError."""
    if kind in INSTANTS and isinstance(document, Mapping):
        instants = {name: [document.get(column) for column in columns] for name, columns in INSTANTS[kind].items()}
        flattened = set(itertools.chain.from_iterable(INSTANTS[kind].values()))
        document = {name: value for name, value in document.items() if name not in flattened} | instants
    value: R = _adapter(kind).validate_python([document])[0]  # type: ignore[arg-type]
    return value


@cache
def _adapter(kind: Any) -> TypeAdapter[list[Any]]:
    # A list, because pydantic refuses a configuration for a dataclass that it does not own.
    return TypeAdapter(list[kind], config=ConfigDict(allow_inf_nan=False))


def text(stored: bytes) -> str | bytes:
    """Decode a text cell as UTF-8 for sqlite3. If that fails, return the bytes, which validation then rejects."""
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return stored


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(str(part) for part in first['loc'][1:])}: {first['msg']}"
    return f"{type(error).__name__}: {error}"


@lru_cache(maxsize=1000)
def _warn(table: str, row: str, reason: str) -> None:
    """Log an unreadable row. The function is cached, so that a row that is read again is not logged again."""
    log.warning("left out an unreadable row of the store", extra={"table": table, "row": row, "reason": reason})
