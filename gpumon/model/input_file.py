"""Reads a file that an operator writes, without blocking on what is no file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

MAX_BYTES = 256 * 1024
"""Maximum size: the file is parsed in the main loop."""


def read_text(path: Path) -> str:
    """Return the content. Raises UnicodeDecodeError, and OSError also for a FIFO, a device or a large file."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(0, "is not a regular file", str(path))
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise OSError(0, f"has more than {MAX_BYTES // 1024} KiB", str(path))
    return content.decode()
