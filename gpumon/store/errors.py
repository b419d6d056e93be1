"""What can go wrong with the file, in words that an operator can act on."""

from __future__ import annotations

import contextlib
import errno
import sqlite3
from collections.abc import Iterator
from pathlib import Path

_ELSEWHERE = "or set --store.path to another place"
_WORDS = {
    sqlite3.SQLITE_FULL: ("the disk is full", f"free space on its file system, {_ELSEWHERE}"),
    sqlite3.SQLITE_READONLY: ("it is read-only", f"mount its file system writable and allow this user, {_ELSEWHERE}"),
    sqlite3.SQLITE_CANTOPEN: ("it cannot be opened", f"allow this user to write in its folder, {_ELSEWHERE}"),
    sqlite3.SQLITE_PERM: ("permission denied", f"allow this user to write it, {_ELSEWHERE}"),
    sqlite3.SQLITE_BUSY: ("another program has locked it", "end that program"),
    sqlite3.SQLITE_IOERR: ("the disk failed", f"look for disk errors in the kernel log, {_ELSEWHERE}"),
}
_SYSTEM = {
    errno.ENOSPC: sqlite3.SQLITE_FULL,
    errno.EDQUOT: sqlite3.SQLITE_FULL,
    errno.EROFS: sqlite3.SQLITE_READONLY,
    errno.EACCES: sqlite3.SQLITE_PERM,
    errno.EPERM: sqlite3.SQLITE_PERM,
    errno.EIO: sqlite3.SQLITE_IOERR,
}


class StoreError(Exception):
    """The store cannot do what was asked. Nothing of it was done."""

    def __init__(self, path: Path, wrong: str, remedy: str, *, damaged: bool = False, in_use: bool = False) -> None:
        super().__init__(f"{path}: {wrong}; {remedy}")
        self.path = path
        self.wrong = wrong
        self.remedy = remedy
        self.damaged = damaged
        self.in_use = in_use
        """By another process."""


@contextlib.contextmanager
def told_plainly(path: Path) -> Iterator[None]:
    """Turn what SQLite and the system raise into StoreError."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise damaged(path, str(error)) from error
        wrong, remedy = _WORDS.get(code, ("it failed", f"report it, {_ELSEWHERE}"))
        raise StoreError(path, f"{wrong} ({error})", remedy) from error
    except OSError as error:
        wrong, remedy = _WORDS.get(_SYSTEM.get(error.errno or 0, 0), ("it failed", f"correct that, {_ELSEWHERE}"))
        raise StoreError(path, f"{wrong} ({error.strerror}: {error.filename})", remedy) from error


def damaged(path: Path, words: str) -> StoreError:
    """The error for a file whose contents cannot be trusted."""
    return StoreError(path, f"it is damaged ({words})", "nothing to do: it is moved aside and begun anew", damaged=True)
