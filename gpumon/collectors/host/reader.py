"""The contract of a reader of the host child: its row in the table, its turn, and the small files that it reads.

During each read through a NotedTree, the path of the file is in shared memory (the call page), so that the daemon can
report a read that hangs.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpumon.model.call_progress import Writer
from gpumon.model.frame import Frame
from gpumon.model.orders import HostOrders

LIMIT = 16384
"""Max bytes that are read from a file. A sysfs file has at most one page."""

UNSUPPORTED = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EINVAL, errno.EOPNOTSUPP, errno.ENODEV, errno.ENODATA})
"""Errno values that mean "not supported" or "gone". Such errors are not reported."""


class Files(Protocol):
    """A tree of small files. Paths are relative to its root. All methods except `exists` may raise OSError."""

    def names(self, folder: str) -> list[str]: ...

    def read(self, path: str) -> str: ...

    def exists(self, path: str) -> bool: ...

    def link(self, path: str) -> str:
        """Return the target of a symbolic link, as written in the link."""
        ...

    def device(self, path: str) -> tuple[int, int] | None:
        """Return the major and minor number of a character device; None for other files."""
        ...

    def modified(self, path: str) -> float:
        """Return the wall time in seconds of the last change of a file's content."""
        ...


class Tree:
    """The files below a folder of this host, as an implementation of Files."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def names(self, folder: str) -> list[str]:
        return os.listdir(self._root / folder)  # noqa: PTH208 - names are wanted, not paths

    def read(self, path: str) -> str:
        descriptor = os.open(self._root / path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            return os.read(descriptor, LIMIT).decode(errors="replace").strip()
        finally:
            os.close(descriptor)

    def exists(self, path: str) -> bool:
        return os.path.exists(self._root / path)  # noqa: PTH110 - that of pathlib raises for some errors

    def link(self, path: str) -> str:
        return os.readlink(self._root / path)  # noqa: PTH115 - a text is wanted, not a path

    def device(self, path: str) -> tuple[int, int] | None:
        status = os.stat(self._root / path)  # noqa: PTH116 - as above
        return (os.major(status.st_rdev), os.minor(status.st_rdev)) if stat.S_ISCHR(status.st_mode) else None

    def modified(self, path: str) -> float:
        return os.stat(self._root / path).st_mtime  # noqa: PTH116 - as above


class NotedTree:
    """A file tree that shows each read on the call page: its `subject`, and the path as formatted by `shown`."""

    def __init__(self, files: Files, page: Writer, subject: str, shown: Callable[[str], str] = str) -> None:
        self._files = files
        self._page = page
        self._subject = subject
        self._shown = shown

    def names(self, folder: str) -> list[str]:
        with self._note_errors(folder):
            return self._files.names(folder)

    def read(self, path: str) -> str:
        with self._note_errors(path):
            return self._files.read(path)

    def exists(self, path: str) -> bool:
        with self._note_errors(path):
            return self._files.exists(path)

    def link(self, path: str) -> str:
        with self._note_errors(path):
            return self._files.link(path)

    def device(self, path: str) -> tuple[int, int] | None:
        with self._note_errors(path):
            return self._files.device(path)

    def modified(self, path: str) -> float:
        with self._note_errors(path):
            return self._files.modified(path)

    @contextmanager
    def _note_errors(self, path: str) -> Iterator[None]:
        self._page.enter(self._shown(path), self._subject)
        try:
            yield
        finally:
            self._page.leave()


class ReadErrors:
    """Read errors of one turn, by path of the file. Errors that mean "not supported" or "gone" are left out."""

    def __init__(self) -> None:
        self.found: dict[str, OSError] = {}
        self.denied = False
        """True if a permission is lacking, even if that is not an error of one file."""

    def note(self, path: str, error: OSError) -> None:
        if error.errno not in UNSUPPORTED:
            self.found[path] = error
            self.denied |= isinstance(error, PermissionError)

    def include(self, other: ReadErrors) -> None:
        self.found |= other.found
        self.denied |= other.denied

    @property
    def words(self) -> str:
        """Return a text with the first error, its path, and the number of other files with errors; "" if none."""
        if not self.found:
            return ""
        path, error = next(iter(self.found.items()))
        more = len(self.found) - 1
        others = f", and {more} more file{'s' if more > 1 else ''}" if more else ""
        return f"{path}: {error.strerror or error}{others}"


def read_text(files: Files, path: str, read_errors: ReadErrors | None = None) -> str:
    """Return the content of a file; "" if it cannot be read. The error is then noted in `read_errors`, if given."""
    try:
        return files.read(path)
    except OSError as error:
        if read_errors is not None:
            read_errors.note(path, error)
        return ""


def list_names(files: Files, folder: str, read_errors: ReadErrors | None = None) -> list[str]:
    """Return the names in a folder; [] if it cannot be read. The error is then noted in `read_errors`, if given."""
    try:
        return files.names(folder)
    except OSError as error:
        if read_errors is not None:
            read_errors.note(folder, error)
        return []


def read_link(files: Files, path: str) -> str:
    """Return the target of a symbolic link; "" if it cannot be read, or if there is no such link."""
    try:
        return files.link(path)
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class Trees:
    """The file trees that the host child reads."""

    sysfs: Files
    root: Files
    """Root directory of the host."""
    settings: Files
    """Files at paths that the configuration names: those of this host also on a simulated node."""


class Turn:
    """One call of a reader: the time, its orders, the file trees that it reads, and what it could not read."""

    def __init__(
        self,
        reader: str,
        trees: Trees,
        orders: HostOrders,
        at: float,
        *,
        page: Writer | None = None,
        pids: tuple[str, ...] = (),
    ) -> None:
        """Create a turn. During each read, the daemon sees the file and the reader's name in the call page `page`."""
        self.orders = orders
        self.pids = pids
        """Ids of the processes on the GPUs."""
        self.at = at
        """Boot clock in seconds."""
        self.errors = ReadErrors()
        self._trees = trees
        self._page = page
        self.sysfs = self.device(reader)
        self.root = self._noted(trees.root, reader, mask_pids)
        self.settings = self._noted(trees.settings, reader, str)

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
    """Function that returns what it has read; a class of such functions if it must keep data between turns."""
    interval: float
    """Seconds between two turns."""


def mask_pids(path: str) -> str:
    """Return the path with `*` in place of each number, because clients of the API must not see process ids."""
    return re.sub(r"/\d+", "/*", path)
