"""Reads /etc/nccl.conf, which affects every process that uses NCCL. Runs with another file are not compared."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

LIMIT = 16 * 1024
"""Max characters of the file that are read."""


def read_nccl_conf(path: Path) -> Mapping[str, str]:
    """Return the text of nccl.conf without comments and empty lines, keyed by the file's path; {} if there is no file.

    If the file cannot be read, the text is a comment with the error.
    """
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            lines = [line.strip() for line in file.read(LIMIT).splitlines()]
    except FileNotFoundError:
        return {}
    except OSError as error:
        return {str(path): f"# not readable: {error.strerror}"}
    return {str(path): "\n".join(line for line in lines if line and not line.startswith("#"))}
