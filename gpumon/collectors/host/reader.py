"""The contract of a reader of the host child: its row in the table, and what it gets at each turn."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from gpumon.collectors.host.files import Files, NotedTree, ReadErrors
from gpumon.model.call_progress import Writer
from gpumon.model.frame import Frame
from gpumon.model.orders import HostOrders


@dataclass(frozen=True, slots=True)
class Trees:
    """The file trees that the host child reads: sysfs, and the root directory of the host."""

    sysfs: Files
    root: Files


class Turn:
    """One call of a reader: the time, its orders, the file trees that it reads, and what it could not read."""

    def __init__(self, reader: str, trees: Trees, orders: HostOrders, at: float, page: Writer | None = None) -> None:
        """Create a turn. During each read, the daemon sees the file and the reader's name in the call page `page`."""
        self.orders = orders
        self.at = at
        """Boot clock in seconds."""
        self.errors = ReadErrors()
        self._trees = trees
        self._page = page
        self.sysfs = self.device(reader)
        self.root = self._noted(trees.root, reader, mask_pids)

    def device(self, name: str) -> Files:
        """Return sysfs for the files of one device. If one of them hangs, only this device is quarantined."""
        return self._noted(self._trees.sysfs, name, str)

    def _noted(self, files: Files, subject: str, shown: Callable[[str], str]) -> Files:
        return files if self._page is None else NotedTree(files, self._page, subject, shown)


ReadFunction = Callable[[Turn], Frame]


@dataclass(frozen=True, slots=True)
class HostReader:
    """A row of the table of readers."""

    name: str
    """Name of the reader in metrics (label `collector`), notices and quarantine."""
    read: ReadFunction | type[ReadFunction]
    """Function that returns what it has read: a frozen dataclass that is a Frame. If it must keep data between turns,
    a class whose instances are such functions.
    """
    interval: float
    """Seconds between two turns."""


def mask_pids(path: str) -> str:
    """Return the path with `*` in place of each number, because clients of the API must not see process ids."""
    return re.sub(r"/\d+", "/*", path)
