"""Reads a text file that an operator wrote, without blocking if the path is a FIFO or a device."""

from __future__ import annotations

import os
import stat
from pathlib import Path

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
