"""Which processes of ours have a GPU's device node open, as the kernel tells: the proof that nothing is held."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

NODES = "/dev/nvidia"
"""With which the path of every device node of the driver begins; a GPU's own ends with its minor number."""


def family() -> set[int]:
    """This process and its children, those that have ended and are not reaped yet among them."""
    lists = Path("/proc/self/task").glob("*/children")
    return {os.getpid(), *(int(pid) for one in lists for pid in _read(one).split())}


def opened(pid: int, nodes: str = NODES) -> frozenset[str]:
    """Paths of device nodes that the process has open; none for one that has ended, or may not be looked at."""
    return frozenset(target for target in _targets(Path(f"/proc/{pid}/fd")) if target.startswith(nodes))


def _targets(folder: Path) -> Iterator[str]:
    try:
        entries = list(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        with contextlib.suppress(OSError):  # closed meanwhile
            yield str(entry.readlink())


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:  # the thread has ended
        return ""
