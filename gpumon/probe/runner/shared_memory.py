"""Shared memory that ranks left behind: killed, they do not delete it, and it would fill /dev/shm run by run."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path("/dev/shm")  # noqa: S108 - where NCCL makes it, whatever it is told
PREFIX = "nccl-"
"""How NCCL calls its files. Gloo makes none, and torch only where processes share tensors."""


def sweep(folder: Path = FOLDER, *, since: float | None = None) -> tuple[str, ...]:
    """Delete what ranks of ours left, and tell its names: files of this user that no process has open.

    `since`: only files made after this, in seconds since the epoch. Files of root may be anybody's, so of those that
    were there before a run none is ours for certain: without `since` they stay.
    """
    if since is None and os.geteuid() == 0:
        return ()
    return tuple(path.name for path in _candidates(folder, since or 0.0) if _delete_unused(path))


def _candidates(folder: Path, since: float) -> Iterator[Path]:
    with contextlib.suppress(OSError):  # no such folder: nothing was left in it
        for entry in os.scandir(folder):
            with contextlib.suppress(FileNotFoundError):
                seen = entry.stat(follow_symlinks=False)
                ours = stat.S_ISREG(seen.st_mode) and seen.st_uid == os.geteuid() and seen.st_ctime >= since
                if ours and entry.name.startswith(PREFIX):
                    yield Path(entry.path)


def _delete_unused(path: Path) -> bool:
    """Whether it was deleted. A lease to write is given only on what nobody else has open or mapped.

    The kernel knows that for every process, those of other containers too, which /proc does not show. Who opens it in
    that moment waits, and the signal that then comes here is one that is ignored.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.fcntl(
            descriptor, fcntl.F_SETSIG, signal.SIGURG
        )  # who opens it meanwhile sends this one, which is ignored
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        path.unlink()
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
