"""Reads the store of an agent that does not run: no lock taken, nothing written beside it, nothing waited for.

SQLite itself cannot do so: to read what a killed agent left in its WAL it wants to write there. So the files are
copied, unless there is no WAL; an agent that starts meanwhile is noticed by the files it changes.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TypeVar

from gpumon.cli.fitness.node_health import Document, Fault, GpuRecord, Known, Unknowable, maintenance
from gpumon.clock import boot_clock, boot_id
from gpumon.health import order
from gpumon.health.terms import OK
from gpumon.health.verdict import Verdict
from gpumon.outputs.asked import asked
from gpumon.outputs.words import rfc3339
from gpumon.store import APPLICATION_ID, verdicts

TRIES, PAUSE = 5, 0.02
MEMORY = "/dev/shm"  # noqa: S108 - the folder made in it is private
T = TypeVar("T")
_Stamps = list[tuple[int, int, int] | None]


def read(path: str) -> Known:
    """What the last agent knew. Raises Unknowable."""
    return inquire(path, _known)


def inquire(path: str, ask: Callable[[sqlite3.Connection], T]) -> T:
    """What the store answers to a question that writes nothing. Raises Unknowable."""
    for _ in range(TRIES):
        before, error = _stamps(path), None
        if before[0] is None:
            raise Unknowable(f"there is no store {path}: name it with --store.path.")
        try:
            with _opened(path) as connection:
                known: T | None = _asked(connection, ask)
        except PermissionError as denied:
            raise _denied(path) from denied
        except (sqlite3.Error, OSError, ValueError, LookupError, TypeError) as wrong:
            known, error = None, wrong
        if before == _stamps(path):
            if known is None:
                raise Unknowable(f"the store {path} cannot be read ({error}): start the agent, which mends it.")
            return known
        time.sleep(PAUSE)  # somebody writes: what was copied may be half of this and half of that
    raise Unknowable(f"the store {path} is being written: an agent is starting. Ask again.")


def _denied(path: str) -> Unknowable:
    return Unknowable(
        f"uid {os.geteuid()} may not read the store {path}: use sudo, or become a member of the group of its folder."
    )


def _stamps(path: str) -> _Stamps:
    return [_stamp(one) for one in (path, _wal(path))]


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    except PermissionError as denied:
        raise _denied(path) from denied
    return found.st_ino, found.st_size, found.st_mtime_ns


def _wal(path: str) -> str:
    return f"{path}-wal"


@contextlib.contextmanager
def _opened(path: str) -> Iterator[sqlite3.Connection]:
    """A connection to the file as it is, or to a copy of it."""
    open(path, "rb").close()  # SQLite would not say why it cannot
    wal = _stamp(_wal(path))
    with contextlib.ExitStack() as stack:
        source = path if wal is None or not wal[1] else stack.enter_context(_copied(path))
        options = "mode=ro&immutable=1" if source is path else "mode=rw"
        connection = sqlite3.connect(f"file:{_quoted(source)}?{options}", uri=True, isolation_level=None)
        yield stack.enter_context(contextlib.closing(connection))


def _quoted(path: str) -> str:
    """As SQLite wants paths in its URIs."""
    return os.path.abspath(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")


@contextlib.contextmanager
def _copied(path: str) -> Iterator[str]:
    """The file and its WAL in a private folder, in memory where there is one.

    By hand: shutil and tempfile take longer to import than all of this.
    """
    memory = MEMORY if os.access(MEMORY, os.W_OK) else os.environ.get("TMPDIR", "/tmp")  # noqa: S108 - the same
    folder = f"{memory}/gpumon-check-{os.urandom(8).hex()}"
    os.mkdir(folder, 0o700)
    copy = f"{folder}/store"
    try:
        _copy(path, copy)
        _copy(_wal(path), _wal(copy))
        yield copy
    finally:
        for name in os.listdir(folder):
            os.unlink(f"{folder}/{name}")
        os.rmdir(folder)


def _copy(path: str, copy: str) -> None:
    with open(path, "rb") as source, open(copy, "xb") as target:
        while block := source.read(1 << 20):
            target.write(block)


def _asked(connection: sqlite3.Connection, ask: Callable[[sqlite3.Connection], T]) -> T:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION_ID:
        raise ValueError("it is not a store of gpumon")
    return ask(connection)


def _known(connection: sqlite3.Connection) -> Known:
    gpus = _gpus(connection)
    index = {gpu.uuid: gpu.number for gpu in gpus}
    left = order.on_their_own({one.key: one for one in verdicts.open_verdicts(connection)})
    known = order.worst_first(left.values())
    return Known(
        source="store",
        level=max((one.level for one in known), default=OK),
        faults=tuple(_fault(one, known, index) for one in order.primary(known)),
        gpus=gpus,
        maintenance=_maintenance(connection),
    )


def _fault(one: Verdict, known: Collection[Verdict], index: Mapping[str, int | None]) -> Fault:
    """A primary verdict with all that follows from it."""
    told = tuple(_document(other, index.get(other.device)) for other in order.following(one, known))
    return Fault(verdict=_document(one, index.get(one.device)), consequences=told)


def _gpus(connection: sqlite3.Connection) -> tuple[GpuRecord, ...]:
    """Those that are expected here. A GPU that was missing when the others were counted anew has no index."""
    rows = connection.execute(
        "SELECT CASE WHEN EXISTS (SELECT 1 FROM boards AS later WHERE later.expected AND later.gpu = boards.gpu"
        " AND later.last_wall > boards.last_wall) THEN NULL ELSE gpu END AS number, uuid, bus_id"
        " FROM boards WHERE expected ORDER BY number IS NULL, number, bus_id"
    ).fetchall()
    return tuple(GpuRecord(number=index, uuid=uuid, bus_id=bus_id) for index, uuid, bus_id in rows)


def _document(one: Verdict, index: int | None) -> Document:
    """As /api/v1/health has it."""
    return {
        "check": one.check,
        "level": one.level.word,
        "device": one.device or None,
        "gpu": index,
        "reason": one.reason,
        **asked(one, boot_id(), time.time() - boot_clock()),
        "since": rfc3339(one.since),
        "seen": rfc3339(one.seen),
    }


def _maintenance(connection: sqlite3.Connection) -> str | None:
    """As the agent would have it now. Most nodes are in none, and need not wait for what reads one."""
    if connection.execute("SELECT 1 FROM maintenance WHERE ended IS NULL").fetchone() is None:
        return None
    from gpumon.model.maintenance import Maintenance, in_force, in_time  # noqa: PLC0415
    from gpumon.model.now import Now  # noqa: PLC0415
    from gpumon.store import spans  # noqa: PLC0415

    at, boot = boot_clock(), boot_id()
    one = in_force(in_time(spans.recent(connection, Maintenance), Now(at=at, wall=time.time(), uptime=at), boot))
    return None if one is None else maintenance(str(rfc3339(one.until)), one.reason)
