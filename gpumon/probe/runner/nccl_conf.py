"""The host's own file of NCCL variables, which every process that uses NCCL reads: part of what a run ran on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

PATH = Path("/etc/nccl.conf")
LIMIT = 16 * 1024
"""Most that is read, in characters."""


def read_nccl_conf(path: Path = PATH) -> Mapping[str, str]:
    """Its lines by its path, without comments; empty where there is no such file."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            lines = [line.strip() for line in file.read(LIMIT).splitlines()]
    except FileNotFoundError:
        return {}
    except OSError as error:
        return {str(path): f"# not readable: {error.strerror}"}
    return {str(path): "\n".join(line for line in lines if line and not line.startswith("#"))}
