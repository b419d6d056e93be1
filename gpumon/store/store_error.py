"""The error that the store raises, with the problem and its remedy for the operator."""

from __future__ import annotations

import contextlib
import errno
import sqlite3
from collections.abc import Iterator
from pathlib import Path

# SQLite's result codes, which the module sqlite3 has from Python 3.11 on.
ERROR, PERM, BUSY, READONLY, IOERR, CORRUPT, FULL, CANTOPEN, NOTADB = 1, 3, 5, 8, 10, 11, 13, 14, 26
_MESSAGES = {
    "disk is full": FULL,
    "readonly database": READONLY,
    "unable to open": CANTOPEN,
    "permission denied": PERM,
    "is locked": BUSY,
    "disk I/O error": IOERR,
}
"""Result code, by a part of the error's message, for exceptions that have no code."""
_ELSEWHERE = "or set --store.path to another place"
_REMEDIES = {
    FULL: ("the disk is full", f"free space on its file system, {_ELSEWHERE}"),
    READONLY: ("it is read-only", f"mount its file system writable and allow this user, {_ELSEWHERE}"),
    CANTOPEN: ("it cannot be opened", f"allow this user to write in its folder, {_ELSEWHERE}"),
    PERM: ("permission denied", f"allow this user to write it, {_ELSEWHERE}"),
    BUSY: ("another program has locked it", "end that program"),
    IOERR: ("the disk failed", f"read the kernel log for disk errors, {_ELSEWHERE}"),
}
_SYSTEM = {
    errno.ENOSPC: FULL,
    errno.EDQUOT: FULL,
    errno.EROFS: READONLY,
    errno.EACCES: PERM,
    errno.EPERM: PERM,
    errno.EIO: IOERR,
}


class StoreError(Exception):
    """Raised if the store cannot be opened, read or written. `problem` and `remedy` are for the operator."""

    def __init__(self, path: Path, problem: str, remedy: str, *, damaged: bool = False) -> None:
        super().__init__(f"{path}: {problem}; {remedy}")
        self.problem = problem
        self.remedy = remedy
        self.damaged = damaged


@contextlib.contextmanager
def store_errors(path: Path) -> Iterator[None]:
    """Convert exceptions of SQLite and of the operating system that are raised in the block to StoreError."""
    try:
        yield
    except sqlite3.Error as error:
        code = _result_code(error)
        if code in (CORRUPT, NOTADB):
            raise damage_error(path, str(error)) from error
        problem, remedy = _REMEDIES.get(code, ("it failed", f"report it, {_ELSEWHERE}"))
        raise StoreError(path, f"{problem} ({error})", remedy) from error
    except UnicodeDecodeError as error:  # sqlite3 quotes a damaged name in its message
        raise damage_error(path, str(error)) from error
    except OSError as error:
        problem, remedy = _REMEDIES.get(_SYSTEM.get(error.errno or 0, 0), ("it failed", f"correct that, {_ELSEWHERE}"))
        raise StoreError(path, f"{problem} ({error.strerror}: {error.filename})", remedy) from error


def _result_code(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code; before Python 3.11 it is inferred from the exception's class and message."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None:
        return int(code) & 0xFF
    if type(error) is sqlite3.DatabaseError:
        return CORRUPT
    return next((code for text, code in _MESSAGES.items() if text in str(error)), ERROR)


def damage_error(path: Path, detail: str) -> StoreError:
    """Return the error for a damaged database file. `detail` states what is damaged."""
    remedy = "nothing to do: the file is moved aside and a new one is created"
    return StoreError(path, f"it is damaged ({detail})", remedy, damaged=True)
