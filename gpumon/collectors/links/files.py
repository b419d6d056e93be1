"""How files are read: those of this host, or of a simulated one, each noted on the call page while it lasts."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from gpumon.model.call_progress import Writer

LIMIT = 16384
"""Bytes; a file of sysfs has a page at most."""

UNSUPPORTED = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EINVAL, errno.EOPNOTSUPP, errno.ENODEV, errno.ENODATA})
"""Errors by which a device says that it has no such thing, or is gone: nobody need hear of them."""


class Files(Protocol):
    """A tree of small files; paths are relative to its root. All but `exists` raise OSError."""

    def names(self, folder: str) -> list[str]: ...

    def read(self, path: str) -> str: ...

    def exists(self, path: str) -> bool: ...

    def link(self, path: str) -> str:
        """Where a symbolic link leads, as it stands there."""
        ...


Reach = Callable[[str], Files]
"""The same files, on behalf of a device or collector that the call page then names."""


class Tree:
    """The files below one folder of this host."""

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


class Paged:
    """Files whose every reading is noted on the call page, on behalf of `subject`; `shown` says how to name a path."""

    def __init__(self, files: Files, page: Writer, subject: str, shown: Callable[[str], str] = str) -> None:
        self._files = files
        self._page = page
        self._subject = subject
        self._shown = shown

    def names(self, folder: str) -> list[str]:
        with self._noted(folder):
            return self._files.names(folder)

    def read(self, path: str) -> str:
        with self._noted(path):
            return self._files.read(path)

    def exists(self, path: str) -> bool:
        with self._noted(path):
            return self._files.exists(path)

    def link(self, path: str) -> str:
        with self._noted(path):
            return self._files.link(path)

    @contextmanager
    def _noted(self, path: str) -> Iterator[None]:
        self._page.enter(self._shown(path), self._subject)
        try:
            yield
        finally:
            self._page.leave()


class Troubles:
    """What could not be read in one look, other than what is not supported."""

    def __init__(self, *earlier: Troubles) -> None:
        self.found: dict[str, OSError] = {path: error for one in earlier for path, error in one.found.items()}

    def note(self, path: str, error: OSError) -> None:
        if error.errno not in UNSUPPORTED:
            self.found[path] = error

    @property
    def denied(self) -> bool:
        return any(isinstance(error, PermissionError) for error in self.found.values())

    @property
    def words(self) -> str:
        """The first of them, and how many more; empty for none."""
        if not self.found:
            return ""
        path, error = next(iter(self.found.items()))
        more = len(self.found) - 1
        others = f", and {more} more file{'s' if more > 1 else ''}" if more else ""
        return f"{path}: {error.strerror or error}{others}"
