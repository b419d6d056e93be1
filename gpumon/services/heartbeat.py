"""Records that the agent runs, once a minute, and that it has stopped."""

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
    """The record of the present run of the agent. Use from the loop's thread."""

    def __init__(self, loop: Loop, writes: WriteBehind, latest: Callable[[], Report]) -> None:
        self._loop = loop
        self._writes = writes
        self._latest = latest

    def start(self) -> None:
        """Record the start at once, so that an agent that crashes in its first minute is recorded."""
        self._loop.every(BEAT_SECONDS, self.beat)

    def stop(self) -> None:
        """Record an orderly stop."""
        self._put(stopped=time.time())

    def beat(self) -> None:
        """Record that the agent runs now, and whether the node is in maintenance."""
        self._put(stopped=None)

    def _put(self, stopped: float | None) -> None:
        report = self._latest()
        planned = report.maintenance is not None
        agent_run = replace(report.agent_runs[-1], last=time.time(), stopped=stopped, planned=planned)
        self._writes.put(agent_runs.TABLE, [agent_run])
