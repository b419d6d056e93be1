"""The error that the store raises, with the problem and its remedy for the operator."""

from __future__ import annotations

import contextlib
import errno
import sqlite3
from collections.abc import Iterator
from pathlib import Path

_ELSEWHERE = "or set --store.path to another place"
_REMEDIES = {
    sqlite3.SQLITE_FULL: ("the disk is full", f"free space on its file system, {_ELSEWHERE}"),
    sqlite3.SQLITE_READONLY: ("it is read-only", f"mount its file system writable and allow this user, {_ELSEWHERE}"),
    sqlite3.SQLITE_CANTOPEN: ("it cannot be opened", f"allow this user to write in its folder, {_ELSEWHERE}"),
    sqlite3.SQLITE_PERM: ("permission denied", f"allow this user to write it, {_ELSEWHERE}"),
    sqlite3.SQLITE_BUSY: ("another program has locked it", "end that program"),
    sqlite3.SQLITE_IOERR: ("the disk failed", f"read the kernel log for disk errors, {_ELSEWHERE}"),
}
"""Problem and remedy for the operator, by SQLite's result code."""
_SYSTEM = {
    errno.ENOSPC: sqlite3.SQLITE_FULL,
    errno.EDQUOT: sqlite3.SQLITE_FULL,
    errno.EROFS: sqlite3.SQLITE_READONLY,
    errno.EACCES: sqlite3.SQLITE_PERM,
    errno.EPERM: sqlite3.SQLITE_PERM,
    errno.EIO: sqlite3.SQLITE_IOERR,
}


class StoreError(Exception):
    """Raised if the store cannot be opened, read or written. `problem` and `remedy` are for the operator."""

    def __init__(self, path: Path, problem: str, remedy: str, *, damaged: bool = False, in_use: bool = False) -> None:
        super().__init__(f"{path}: {problem}; {remedy}")
        self.path = path
        self.problem = problem
        self.remedy = remedy
        self.damaged = damaged
        self.in_use = in_use
        """True if another process has locked the store."""


@contextlib.contextmanager
def store_errors(path: Path) -> Iterator[None]:
    """Convert exceptions of SQLite and of the operating system that are raised in the block to StoreError."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise damage_error(path, str(error)) from error
        problem, remedy = _REMEDIES.get(code, ("it failed", f"report it, {_ELSEWHERE}"))
        raise StoreError(path, f"{problem} ({error})", remedy) from error
    except UnicodeDecodeError as error:  # sqlite3 quotes a damaged name in its message
        raise damage_error(path, str(error)) from error
    except OSError as error:
        problem, remedy = _REMEDIES.get(_SYSTEM.get(error.errno or 0, 0), ("it failed", f"correct that, {_ELSEWHERE}"))
        raise StoreError(path, f"{problem} ({error.strerror}: {error.filename})", remedy) from error


def damage_error(path: Path, detail: str) -> StoreError:
    """Return the error for a damaged database file. `detail` states what is damaged."""
    remedy = "nothing to do: the file is moved aside and a new one is created"
    return StoreError(path, f"it is damaged ({detail})", remedy, damaged=True)
