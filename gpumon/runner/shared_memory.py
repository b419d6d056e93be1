"""Deletes the shared memory files of killed ranks, which would otherwise fill /dev/shm."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path("/dev/shm")  # noqa: S108 - where NCCL makes it, whatever its settings
PREFIX = "nccl-"
"""Prefix of the names of NCCL's files. Gloo creates no files, and torch creates some only if processes share tensors.
"""


def sweep(folder: Path = FOLDER, *, since: float | None = None) -> tuple[str, ...]:
    """Delete NCCL's files that belong to this user and that no process has open. Return their names.

    `since`: delete only files changed after this time, in seconds since the epoch. If it is None, files of any age are
    deleted, but root deletes none, because files of root may belong to other programs.
    """
    if since is None and os.geteuid() == 0:
        return ()
    return tuple(path.name for path in _candidates(folder, since or 0.0) if _delete_unused(path))


def _candidates(folder: Path, since: float) -> Iterator[Path]:
    with contextlib.suppress(OSError):  # no such folder
        for entry in os.scandir(folder):
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_ctime >= since
                if ours and entry.name.startswith(PREFIX):
                    yield Path(entry.path)


def _delete_unused(path: Path) -> bool:
    """Delete a file unless another process has it open or mapped. Return whether it was deleted.

    The kernel grants a write lease only on an unused file, and counts processes of other containers too. If a process
    opens the file meanwhile, that process waits, and this process gets a signal, which it ignores.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)  # sent when a process opens the file; ignored
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        path.unlink()
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
