"""The open store file, and transactions on it. It is opened under a lock; a damaged file is renamed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sqlite3
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from typing_extensions import Self

from gpumon.store.schema import APPLICATION_ID, is_intact, migrate
from gpumon.store.store_error import StoreError, damage_error, store_errors
from gpumon.store.stored_rows import text

_MAGIC = b"SQLite format 3\0"
_MARK = "gpumon "
"""First characters of a lock file that gpumon has written. The process id of the agent follows."""
_MAX_DAMAGED = 3
"""Maximum number of damaged database files that are kept. More could fill a failing disk."""
_MEMORY_FOLDER = Path("/dev/shm")  # noqa: S108 - the folder created in it is private


@dataclass(slots=True, kw_only=True)
class Store:
    """The open store file, or a copy of it in memory if the file cannot be written. For use by one thread."""

    path: Path
    connection: sqlite3.Connection
    lock: int | None = None
    """File descriptor that holds the lock until it is closed; None for a copy in memory."""
    refusal: StoreError | None = None
    """Why the file cannot be written, so that `connection` is to a copy in memory; None if it can be written."""
    moved_aside: Path | None = None
    """New path of the damaged file that this file replaces; None if no file was damaged."""
    files: Mapping[Path, tuple[int, int] | None] = field(default_factory=dict)
    """Device and inode of each file that the connection writes, at the time of opening, by path; None if the file did
    not exist.
    """

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open or create the database file, and lock it. Rename a damaged file, and create a new one.

        If the file cannot be written, the store is a copy in memory, and `writing` raises StoreError. Raise StoreError
        if the file can neither be read nor created, belongs to another program or a newer gpumon, or is locked by
        another agent.
        """
        with store_errors(path):
            if not path.parent.is_dir():
                raise StoreError(path, "its folder does not exist", f"create it: mkdir -p {path.parent}")
            refusal = _refusal(path)
            if refusal is not None:
                return cls(path=path, connection=_copy(path, refusal), refusal=refusal)
            intact = _is_intact(path)
            with contextlib.ExitStack() as on_failure:
                lock = _lock(path)
                on_failure.callback(os.close, lock)
                connection, moved_aside = _open_or_replace(path, intact=intact)
                files = {file: _identity(file) for file in (path, _sibling_path(path, "-wal"))}
                on_failure.pop_all()
            return cls(path=path, connection=connection, lock=lock, moved_aside=moved_aside, files=files)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and release its lock."""
        try:
            with store_errors(self.path):
                self.connection.close()
        finally:
            if self.lock is not None:
                os.close(self.lock)
                self.lock = None

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Begin a transaction, which is durable when the block ends, and rolled back if it raises. Raise StoreError."""
        if self.refusal is not None:
            raise self.refusal
        with store_errors(self.path), self.connection:  # commits, or rolls back if an exception is raised
            self.connection.execute("BEGIN IMMEDIATE")
            yield self.connection

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Return the connection for reading as a context manager. Convert errors in the block to StoreError."""
        with store_errors(self.path):
            yield self.connection

    def prove_writable(self) -> None:
        """Write one row to table `meta` and sync it. Raise StoreError if that fails."""
        with self.writing() as connection:
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('written', ?)", (str(time.time()),))

    def prove_in_place(self) -> None:
        """Raise StoreError if the file was deleted, moved or replaced since it was opened.

        Rows written to such a file would be lost, because the next agent opens the path. If it was the database
        itself, its WAL is deleted first, if that remains.
        """
        with store_errors(self.path):
            changed = [file for file, identity in self.files.items() if _identity(file) != identity]
            if not changed:
                return
            if self.path in changed:
                for file in self.files.keys() - changed:  # SQLite would apply a remaining WAL to the new file
                    file.unlink(missing_ok=True)
            problem = f"{changed[0].name} was deleted, moved or replaced while it was open"
            raise StoreError(self.path, problem, "nothing to do: it is reopened and rewritten from the agent's state")


def examine(path: Path) -> sqlite3.Connection | None:
    """Return a copy of the file in memory; None if there is no file. The file itself is not changed.

    Raise StoreError if the file is damaged, cannot be read, or belongs to another program.
    """
    with store_errors(path):
        if not _is_intact(path):
            raise damage_error(path, "its header is overwritten")
        return _copy_to_memory(path) if path.exists() else None


def _identity(path: Path) -> tuple[int, int] | None:
    with contextlib.suppress(FileNotFoundError):
        status = path.stat()
        return status.st_dev, status.st_ino
    return None


def _refusal(path: Path) -> StoreError | None:
    """Return an error if the store cannot be written, or its folder or one of its files cannot be trusted.

    They must belong to root or to this user, and the files must be regular. Otherwise a symbolic link beside the store
    could make an agent that runs as root write to any file.
    """
    elsewhere = "or set --store.path to another place"
    blocked = next((item for item in (path.parent, path) if item.exists() and not os.access(item, os.W_OK)), None)
    if blocked is not None:
        remedy = f"make {blocked} writable for uid {os.geteuid()}, {elsewhere}"
        return StoreError(path, "it cannot be written", remedy)
    for item in (path.parent, *(_sibling_path(path, suffix) for suffix in ("", "-wal", "-journal", ".lock"))):
        with contextlib.suppress(FileNotFoundError):
            status = item.stat() if item == path.parent else item.lstat()
            if status.st_uid not in {0, os.geteuid()}:
                remedy = f"run as that user, or set --store.path to a folder of uid {os.geteuid()}"
                return StoreError(path, f"{item} belongs to uid {status.st_uid}", remedy)
            if item != path.parent and not stat.S_ISREG(status.st_mode):
                return StoreError(path, f"{item} is not a regular file", f"remove it, {elsewhere}")
    return None


def _copy(path: Path, refusal: StoreError) -> sqlite3.Connection:
    """Return a copy in memory: SQLite cannot read a WAL in a directory that it cannot write. Else raise `refusal`."""
    if not path.exists():
        raise refusal
    try:
        return _copy_to_memory(path)
    except StoreError as error:
        raise refusal from error


def _copy_to_memory(path: Path) -> sqlite3.Connection:
    """Return a connection to a migrated copy of the file in memory. Raise StoreError if the file is damaged."""
    memory = sqlite3.connect(":memory:", isolation_level=None)
    memory.text_factory = text
    folder = _MEMORY_FOLDER if os.access(_MEMORY_FOLDER, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        copy = Path(scratch) / path.name
        for suffix in ("", "-wal"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(_sibling_path(path, suffix), _sibling_path(copy, suffix))
        with contextlib.closing(_connect(copy)) as connection:
            connection.backup(memory)
    return memory


def _is_intact(path: Path) -> bool:
    """Return False for a damaged header. Raise StoreError if the file belongs to another program."""
    header = _head(path)
    if not header or (header.startswith(_MAGIC) and header[68:72] == APPLICATION_ID.to_bytes(4, "big")):
        return True
    if _head(_sibling_path(path, ".lock")).startswith(_MARK.encode()):
        return False
    raise StoreError(path, "it is not a store of gpumon", "move it away, or set --store.path to another place")


def _head(path: Path) -> bytes:
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        return file.read(72)
    return b""


def _lock(path: Path) -> int:
    descriptor = os.open(_sibling_path(path, ".lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.read(descriptor, 100).decode(errors="replace").removeprefix(_MARK).strip() or "unknown"
        os.close(descriptor)
        problem = f"process {holder} is using it"
        raise StoreError(path, problem, "end that agent, or give this one its own --store.path") from error
    with contextlib.suppress(OSError):  # on a full disk the process id cannot be written, but the lock is held
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{_MARK}{os.getpid()}\n".encode(), 0)
    return descriptor


def _open_or_replace(path: Path, *, intact: bool) -> tuple[sqlite3.Connection, Path | None]:
    """Open the file; if it is damaged, create a new one, and return also the new path of the old one."""
    if intact:
        try:
            return _connect(path), None
        except StoreError as error:
            if not error.damaged:
                raise
    moved_aside = _quarantine(path)
    return _connect(path), moved_aside


def _connect(path: Path) -> sqlite3.Connection:
    with store_errors(path), contextlib.ExitStack() as on_failure:
        connection = sqlite3.connect(path, timeout=1, isolation_level=None)
        connection.text_factory = text
        on_failure.callback(connection.close)
        _prepare(connection, path)
        on_failure.pop_all()
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    # Exclusive: the index of the WAL is then not a mapped file, through which a disk error kills the process.
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    if not path.stat().st_size:  # before the WAL, so that the file has the application id from its first page on
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")  # an acknowledged write survives a power cut
    connection.execute("PRAGMA journal_size_limit = 4194304")
    (problem,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if problem != "ok":
        raise damage_error(path, problem)
    migrate(connection, path)
    if not is_intact(connection):
        raise damage_error(path, "the schema is another one")


def _quarantine(path: Path) -> Path:
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S.%fZ")
    aside = _sibling_path(path, f".corrupt-{stamp}")
    path.rename(aside)
    for suffix in ("-wal", "-journal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            _sibling_path(path, suffix).rename(_sibling_path(aside, suffix))
    newest_first = sorted(path.parent.glob(f"{path.name}.corrupt-*Z"), reverse=True)
    for old in newest_first[_MAX_DAMAGED:]:
        for file in path.parent.glob(f"{old.name}*"):
            file.unlink(missing_ok=True)
    return aside


def _sibling_path(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)
