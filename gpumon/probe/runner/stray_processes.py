"""What ranks have started in other sessions, where they have no control group: known by what its environment says."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from gpumon.clock import boot_clock
from gpumon.probe.runner.orphans import PROC, began, end, is_of_own_pass

log = logging.getLogger("gpumon.probe.core")

_TICKS = os.sysconf("SC_CLK_TCK")


class Strays:
    """Of the pass of this number, which begins now.

    What left its environment behind is not found: that takes a group.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._since = int(boot_clock() * _TICKS) - 1
        self._ranks: set[int] = set()
        self._found: Mapping[int, str] = {}
        self._look: threading.Thread | None = None
        self._refused = False
        self.searched = False
        """Whether the last look found nobody."""

    def add(self, pid: int) -> None:
        """A rank, which is told of by its own end."""
        self._ranks.add(pid)

    def pids(self) -> frozenset[int]:
        """Of what was found and is there still."""
        return frozenset(pid for pid, then in self._found.items() if began(PROC / str(pid)) == then)

    def kill(self) -> None:
        """Look, and kill. In a thread: to read an environment may take for ever where a driver holds up the process."""
        if self._look is not None and self._look.is_alive():
            return
        look = threading.Thread(target=self._end, name="strays", daemon=True)
        try:
            look.start()
            self._look = look
        except RuntimeError as error:  # no more threads; whoever asks does so again
            if not self._refused:
                log.warning("nobody looks for what ranks have started", extra={"error": str(error)})
            self._refused = True

    def remove(self) -> None:
        """Nothing was made."""

    def _end(self) -> None:
        found = {int(one.name): began(one) for one in self._strays()}
        self._found = {**self._found, **found}
        self.searched = not found

    def _strays(self) -> Iterator[Path]:
        """Only of what began with the pass or later is more read than its age."""
        for process in PROC.glob("[0-9]*"):
            if int(process.name) in self._ranks or int(began(process) or 0) < self._since:
                continue
            with contextlib.suppress(OSError):
                if process.stat().st_uid == os.geteuid() and end(process, self._is_ours):
                    yield process

    def _is_ours(self, process: Path) -> bool:
        return is_of_own_pass(process, self._number)
