"""Stores the allocations of the GPUs, so that they and the use of the GPUs survive a restart."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gpumon.clock import boot_clock
from gpumon.services.write_behind import WriteBehind
from gpumon.state.report import Report
from gpumon.store import allocations

INTERVAL_SECONDS = 60.0
"""Seconds after which allocations in force are written again. A crash loses at most the use of this time."""


class AllocationWriter:
    """Service that writes allocations when they begin, each minute, and when they end. Use from the loop's thread."""

    def __init__(self, writes: WriteBehind, latest: Callable[[], Report]) -> None:
        self._writes = writes
        self._latest = latest
        self._written: dict[str, bool] = {}
        """Whether an allocation had ended when it was last written, by id."""
        self._due = 0.0

    def tick(self, *, everything: bool = False) -> None:
        """Write the allocations that are new or have ended, or all if a minute has passed."""
        current, now = self._latest().jobs.every, boot_clock()
        changed = [each for each in current if self._written.get(each.id) is not each.ended]
        if everything or now >= self._due:
            self._due = now + INTERVAL_SECONDS
            changed = [each for each in current if not each.ended or each in changed]
        self._written = {each.id: each.ended for each in current}
        if changed:
            self._writes.write(partial(allocations.put, allocations=changed))

    def stop(self) -> None:
        self.tick(everything=True)
