"""Reads from /proc the agent's own process ids, and which device nodes of the NVIDIA driver a process has open."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from gpumon.supervisor.process_tree import children

NODES = "/dev/nvidia"
"""Prefix of the paths of the NVIDIA driver's device nodes. In the path of a GPU's node, its minor number follows."""


def own_pids() -> set[int]:
    """Return the pids of this process and its children, including children that have ended but are not yet reaped."""
    return {os.getpid(), *children(os.getpid())}


def open_nodes(pid: int, nodes: str = NODES) -> frozenset[str]:
    """Return the paths with the prefix `nodes` (by default: the NVIDIA driver's device nodes) that a process has open.

    Return an empty set if the process has ended or may not be inspected.
    """
    return frozenset(target for target in _targets(Path(f"/proc/{pid}/fd")) if target.startswith(nodes))


def _targets(folder: Path) -> Iterator[str]:
    try:
        entries = list(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        with contextlib.suppress(OSError):  # the descriptor was closed in the meantime
            yield str(entry.readlink())
