"""For how long nobody has seen who holds the GPUs of a run: a job that comes then is not noticed."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gpumon.clock import boot_clock
from gpumon.state.report import Report

LONGEST_LOOK = 1.0
"""Seconds that one look can add: when more time has passed the agent itself was held up, and has not read yet."""


class Unseen:
    """From its making on, which is when they were seen last. `gpus`: UUIDs of those that a run uses."""

    def __init__(self, gpus: Collection[str] = ()) -> None:
        self._seconds = dict.fromkeys(gpus, 0.0)
        self._read: dict[str, float | None] = {}
        """When each was read last, as the Report has it."""
        self._looked_at = boot_clock()

    @property
    def seconds(self) -> Mapping[str, float]:
        """By UUID."""
        return self._seconds

    def look(self, report: Report) -> None:
        now = boot_clock()
        elapsed, self._looked_at = min(now - self._looked_at, LONGEST_LOOK), now
        states = {state.uuid: state for state in report.gpus if state.gpu.processes is not None}
        for uuid, seconds in self._seconds.items():
            known = report.internal.inventory.get(states[uuid].bus_id) if uuid in states else None
            read = None if known is None else known.seen_at
            unread = uuid not in states or (read is not None and read == self._read.get(uuid))
            self._seconds[uuid] = seconds + elapsed if unread else 0.0
            self._read[uuid] = read
