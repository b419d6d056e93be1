"""Reads small files safely: a path may be a FIFO, and other users may create files and links in a folder."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

StrPath = str | os.PathLike[str]


class UntrustedFileError(OSError):
    """Raised for a file of the wrong owner, type or size.

    `reason` completes a sentence that begins with the file's path.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.strerror = self.reason = reason


def read(path: StrPath, max_bytes: int) -> bytes:
    """Return the content of a regular file that belongs to root, to this user or to the owner of its folder.

    Raise UntrustedFileError if the file has another owner, is not a regular file, or has more than `max_bytes` bytes.
    Raise OSError if it cannot be opened or is a symbolic link. A named pipe does not block the call.
    """
    with contextlib.ExitStack() as stack:
        folder, name = os.path.split(path)
        directory = os.open(folder or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, directory)
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
        stack.callback(os.close, descriptor)
        status, owner = os.fstat(descriptor), os.fstat(directory).st_uid
        if not stat.S_ISREG(status.st_mode):
            raise UntrustedFileError("is not a regular file")
        if status.st_uid not in {0, owner, os.geteuid()}:
            raise UntrustedFileError(
                f"belongs to uid {status.st_uid}, not to root, to this user (uid {os.geteuid()}) or to the owner of its"
                f" folder (uid {owner})"
            )
        if status.st_size > max_bytes:
            raise UntrustedFileError(f"has more than {max_bytes} bytes")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(max_bytes)


MAX_BYTES = 256 * 1024
"""Maximum size of the file in bytes. It is small because the daemon parses the file in its main loop."""


def read_text(path: Path) -> str:
    """Return the content of a UTF-8 file.

    Raise UnicodeDecodeError for other encodings. Raise OSError if the file cannot be read, is not a regular file or has
    more than MAX_BYTES.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(0, "is not a regular file", str(path))
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise OSError(0, f"has more than {MAX_BYTES // 1024} KiB", str(path))
    return content.decode()
