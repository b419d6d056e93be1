"""The open store file, and transactions on it. The module of each table reads and writes the rows of that table."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from typing_extensions import Self

from gpumon.store.database_file import OpenFile, open_file, prove_in_place
from gpumon.store.store_error import store_errors


class Store:
    """The open store, for use by one thread. `close`, or leaving its `with` block, closes the file."""

    def __init__(self, path: Path, opened: OpenFile) -> None:
        self.path = path
        self.moved_aside = opened.moved_aside
        """New path of the damaged file that this store replaces; None if no file was damaged."""
        self._connection = opened.connection
        self._files = opened.files
        self._lock = opened.lock
        self._refusal = opened.refusal

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open or create the store's file. Raise StoreError if it cannot be opened.

        If the file cannot be written, the store is a copy in memory, and `writing` raises StoreError.
        """
        return cls(path, open_file(path))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and release its lock."""
        try:
            with store_errors(self.path):
                self._connection.close()
        finally:
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Begin a transaction, and return the connection for it as a context manager.

        The transaction is durable when the block ends, and rolled back if the block raises. Raise StoreError if the
        transaction fails.
        """
        if self._refusal is not None:
            raise self._refusal
        with store_errors(self.path), self._connection:  # commits, or rolls back if an exception is raised
            self._connection.execute("BEGIN IMMEDIATE")
            yield self._connection

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Return the connection for reading as a context manager. Convert errors in the block to StoreError.

        The connection is to a copy in memory if the file cannot be written.
        """
        with store_errors(self.path):
            yield self._connection

    def prove_writable(self) -> None:
        """Write one row to table `meta` and sync it. Raise StoreError if that fails."""
        with self.writing() as connection:
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('written', ?)", (str(time.time()),))

    def prove_in_place(self) -> None:
        """Raise StoreError if the file was deleted, moved or replaced.

        Rows written to such a file would be lost, because the next agent opens the path. If it was the database
        itself, its WAL is deleted first, if that remains.
        """
        with store_errors(self.path):
            prove_in_place(self.path, self._files)
