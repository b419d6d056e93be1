"""Reads and writes rows of an open store, each in a transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from gpumon.store.store import Store

P = ParamSpec("P")
T = TypeVar("T")


def write(
    store: Store, work: Callable[Concatenate[sqlite3.Connection, P], T], /, *arguments: P.args, **options: P.kwargs
) -> T:
    """Return the result of `work` after it is durable."""
    with store.writing() as connection:
        return work(connection, *arguments, **options)


def read(
    store: Store, query: Callable[Concatenate[sqlite3.Connection, P], T], /, *arguments: P.args, **options: P.kwargs
) -> T:
    """Return the result of `query`."""
    with store.reading() as connection:
        return query(connection, *arguments, **options)
