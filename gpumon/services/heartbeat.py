"""Stores, once a minute, that the agent is running; at an orderly stop, stores the time of the stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from gpumon.services.write_behind import WriteBehind
from gpumon.state.report import Report
from gpumon.store import records
from gpumon.supervisor.loop import Loop

BEAT_SECONDS = 60.0


class Heartbeat:
    """Service that updates the row of the running agent in the store's table agent_runs. Use from the loop's thread."""

    def __init__(self, loop: Loop, writes: WriteBehind, latest: Callable[[], Report]) -> None:
        self._loop = loop
        self._writes = writes
        self._latest = latest

    def start(self) -> None:
        """Store a row for this run of the agent at once, and update the row each minute.

        The store thus has a row even if the agent crashes in its first minute.
        """
        self._loop.every(BEAT_SECONDS, self.beat)

    def stop(self) -> None:
        """Store the current time as the time at which the agent was stopped."""
        self._put(stopped=time.time())

    def beat(self) -> None:
        """Store the current time as the time at which the agent last ran, and whether the node is in maintenance."""
        self._put(stopped=None)

    def _put(self, stopped: float | None) -> None:
        report = self._latest()
        planned = report.maintenance is not None
        agent_run = replace(report.agent.runs[-1], last=time.time(), stopped=stopped, planned=planned)
        self._writes.put(records.AGENT_RUNS, [agent_run])
