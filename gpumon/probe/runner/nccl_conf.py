"""Read /etc/nccl.conf, which every process that uses NCCL reads: it is part of a run's conditions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

LIMIT = 16 * 1024
"""Max characters to read."""


def read_nccl_conf(path: Path) -> Mapping[str, str]:
    """Return the lines of nccl.conf without comments, by the path of the file; empty if there is no such file."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            lines = [line.strip() for line in file.read(LIMIT).splitlines()]
    except FileNotFoundError:
        return {}
    except OSError as error:
        return {str(path): f"# not readable: {error.strerror}"}
    return {str(path): "\n".join(line for line in lines if line and not line.startswith("#"))}
