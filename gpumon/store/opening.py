"""How the file is opened: one agent at a time, never another program's file, damaged ones moved aside."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from gpumon.store import APPLICATION_ID
from gpumon.store.errors import StoreError, damaged, told_plainly
from gpumon.store.schema import migrate

_MAGIC = b"SQLite format 3\0"
_MARK = "gpumon "
"""Begins every lock file of ours; the process id follows."""
_KEPT_ASIDE = 3
"""Damaged files that are kept: a failing disk must not be filled with them."""
_MEMORY_FOLDER = Path("/dev/shm")  # noqa: S108 - the folder made in it is private


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """An open file."""

    connection: sqlite3.Connection
    lock: int | None = None
    """Descriptor whose lock lasts as long as it is open."""
    refusal: StoreError | None = None
    """Why nothing can be written. Then the connection is a copy in memory."""
    moved_aside: Path | None = None
    """Where the damaged file went in whose place this one was begun."""
    begun: bool = False
    """There was nothing before."""
    files: Mapping[Path, tuple[int, int] | None] = field(default_factory=dict)
    """What the connection writes to, and which files were there when it was opened."""


def open_file(path: Path) -> Opened:
    """Open or create the file. Raises StoreError."""
    with told_plainly(path):
        if not path.parent.is_dir():
            raise StoreError(path, "its folder does not exist", f"create it: mkdir -p {path.parent}")
        refusal = _refusal(path)
        if refusal is not None:
            return _copy(path, refusal)
        known = _belongs_to_us(path)
        lock = _lock(path)
        try:
            begun = not _head(path)
            opened = _open_or_begin_anew(path, known=known)
            return replace(opened, lock=lock, begun=begun, files={one: _identity(one) for one in _written(path)})
        except BaseException:
            os.close(lock)
            raise


def open_copy(path: Path) -> Opened:
    """Open a copy in memory, with neither lock nor write in the folder of the file. Raises StoreError."""
    with told_plainly(path):
        if not path.exists():
            raise StoreError(path, "there is no such store", "name it with --store.path")
        _belongs_to_us(path)
        return _copy(path, StoreError(path, "it cannot be read", "start the agent, which repairs it"))


def prove_in_place(path: Path, files: Mapping[Path, tuple[int, int] | None]) -> None:
    """Raises StoreError when one of the files was deleted, moved or replaced: who opens the path does not find it."""
    strange = [one for one, identity in files.items() if _identity(one) != identity]
    if not strange:
        return
    if path in strange:
        for one in files.keys() - strange:  # a WAL that is left would be played into whatever is at the path now
            one.unlink(missing_ok=True)
    wrong = f"{strange[0].name} was deleted, moved or replaced while it was open"
    raise StoreError(path, wrong, "nothing to do: it is opened anew and told what the agent knows")


def _written(path: Path) -> tuple[Path, ...]:
    return path, _beside(path, "-wal")


def _identity(path: Path) -> tuple[int, int] | None:
    """None: no file."""
    with contextlib.suppress(FileNotFoundError):
        found = path.stat()
        return found.st_dev, found.st_ino
    return None


def _refusal(path: Path) -> StoreError | None:
    blocked = next((one for one in (path.parent, path) if one.exists() and not os.access(one, os.W_OK)), None)
    if blocked is None:
        return None
    remedy = f"make {blocked} writable for uid {os.geteuid()}, or set --store.path to another place"
    return StoreError(path, "it cannot be written", remedy)


def _copy(path: Path, refusal: StoreError) -> Opened:
    """What the file holds, in memory: SQLite itself cannot read a WAL beside which it cannot write."""
    if not path.exists():
        raise refusal
    memory = sqlite3.connect(":memory:", isolation_level=None)
    folder = _MEMORY_FOLDER if os.access(_MEMORY_FOLDER, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        copy = Path(scratch) / path.name
        for suffix in ("", "-wal"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(_beside(path, suffix), _beside(copy, suffix))
        try:
            with contextlib.closing(_connect(copy)) as connection:
                connection.backup(memory)
        except StoreError as error:
            raise refusal from error
    return Opened(connection=memory, refusal=refusal)


def _belongs_to_us(path: Path) -> bool:
    """Whether it is a store or a new file; False for what was a store once, by its lock file, and is damaged now."""
    header = _head(path)
    if not header or (header.startswith(_MAGIC) and header[68:72] == APPLICATION_ID.to_bytes(4)):
        return True
    if _head(_lock_path(path)).startswith(_MARK.encode()):
        return False
    raise StoreError(path, "it is not a store of gpumon", "move it away, or set --store.path to another place")


def _head(path: Path) -> bytes:
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        return file.read(72)
    return b""


def _lock(path: Path) -> int:
    descriptor = os.open(_lock_path(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.read(descriptor, 100).decode(errors="replace").removeprefix(_MARK).strip() or "unknown"
        os.close(descriptor)
        wrong = f"process {holder} is using it"
        raise StoreError(path, wrong, "end that agent, or give this one its own --store.path", in_use=True) from error
    with contextlib.suppress(OSError):  # on a full disk the lock holds all the same, only unnamed
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{_MARK}{os.getpid()}\n".encode(), 0)
    return descriptor


def _lock_path(path: Path) -> Path:
    return _beside(path, ".lock")


def _open_or_begin_anew(path: Path, *, known: bool) -> Opened:
    if known:
        try:
            return Opened(connection=_connect(path))
        except StoreError as error:
            if not error.damaged:
                raise
    aside = _move_aside(path)
    return Opened(connection=_connect(path), moved_aside=aside)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=1, isolation_level=None)
    try:
        with told_plainly(path):
            _prepare(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    # Exclusive: the index of the WAL is then not a mapped file, through which a disk error kills the process.
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    if not path.stat().st_size:  # before the WAL, so that the file itself bears the mark from its first page on
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")  # what was acknowledged survives a power cut
    connection.execute("PRAGMA journal_size_limit = 4194304")
    (verdict,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if verdict != "ok":
        raise damaged(path, verdict)
    migrate(connection, path)


def _move_aside(path: Path) -> Path:
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    aside = _beside(path, f".corrupt-{stamp}")
    path.rename(aside)
    for suffix in ("-wal", "-journal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            _beside(path, suffix).rename(_beside(aside, suffix))
    _forget_old(path)
    return aside


def _forget_old(path: Path) -> None:
    newest_first = sorted(path.parent.glob(f"{path.name}.corrupt-*Z"), reverse=True)
    for old in newest_first[_KEPT_ASIDE:]:
        for one in path.parent.glob(f"{old.name}*"):
            one.unlink(missing_ok=True)


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)
