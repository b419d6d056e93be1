"""Validates rows when they are read, because SQLite stores any value in any cell and has no checksums.

A row that cannot be read is left out, counted and logged.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, lru_cache
from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from gpumon.store.store_table import MAX_COUNT

R = TypeVar("R")
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]

log = logging.getLogger("gpumon.store")

MAX_KEY = 100
"""Maximum number of characters to log of the first column of an unreadable row."""
_LEFT_OUT: ContextVar[Counter[str] | None] = ContextVar("left_out", default=None)


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


def records(table: str, kind: type[R], columns: Sequence[str], rows: Iterable[Sequence[object]]) -> tuple[R, ...]:
    """Return an object of type `kind` for each readable row. Its fields are named like the columns."""
    return tuple(readable(table, rows, lambda row: validate(kind, dict(zip(columns, row, strict=True)))))


def validate(kind: type[R], document: object) -> R:
    """Return a value read from the store, such as a dict of columns, as an object of type `kind`.

    Raise ValueError if a field is missing, or has a value that pydantic cannot convert to its type.
    """
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
