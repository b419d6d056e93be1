"""The open store file and transactions on it. For each table a module reads and writes its rows."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from gpumon.store.database_file import OpenFile, open_file, prove_in_place
from gpumon.store.store_error import store_errors


class Store:
    """An open store file, used by one thread. `close`, or leaving its `with` block, closes it."""

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
        """Open or create the file. A file that cannot be written is opened for reading. Raise StoreError."""
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
        """Begin a transaction.

        It is durable when the block ends, and rolled back if the block raises. Raise StoreError.
        """
        if self._refusal is not None:
            raise self._refusal
        with store_errors(self.path), self._connection:  # commits, or rolls back if an exception is raised
            self._connection.execute("BEGIN IMMEDIATE")
            yield self._connection

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Return the connection for reading. It is a copy in memory if the file cannot be written. Raise StoreError."""
        with store_errors(self.path):
            yield self._connection

    def prove_writable(self) -> None:
        """Write and sync one row. Raise StoreError if that fails."""
        with self.writing() as connection:
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('written', ?)", (str(time.time()),))

    def prove_in_place(self) -> None:
        """Raise StoreError if the file was deleted, moved or replaced: the next agent would not find the rows."""
        with store_errors(self.path):
            prove_in_place(self.path, self._files)
