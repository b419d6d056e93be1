"""Stores once a minute that the agent runs, and at its end that it stopped orderly."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from gpumon.services.write_behind import WriteBehind
from gpumon.state.report import Report
from gpumon.store import agent_runs
from gpumon.supervisor.loop import Loop

BEAT_SECONDS = 60.0


class Heartbeat:
    """Service that keeps the row of the current agent run up to date. Use from the loop's thread."""

    def __init__(self, loop: Loop, writes: WriteBehind, latest: Callable[[], Report]) -> None:
        self._loop = loop
        self._writes = writes
        self._latest = latest

    def start(self) -> None:
        """Store the start at once, so that an agent that crashes in its first minute has a row.

        Then store each minute.
        """
        self._loop.every(BEAT_SECONDS, self.beat)

    def stop(self) -> None:
        """Store the time of an orderly stop."""
        self._put(stopped=time.time())

    def beat(self) -> None:
        """Store that the agent runs now, and whether the node is in maintenance."""
        self._put(stopped=None)

    def _put(self, stopped: float | None) -> None:
        report = self._latest()
        planned = report.maintenance is not None
        agent_run = replace(report.agent_runs[-1], last=time.time(), stopped=stopped, planned=planned)
        self._writes.put(agent_runs.TABLE, [agent_run])
