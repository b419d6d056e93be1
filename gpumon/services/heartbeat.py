"""The agent's life on record: that it runs, once a minute, and that it ended in order."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from gpumon.services.persistence import Persistence
from gpumon.state.report import Report
from gpumon.supervisor.loop import Loop

BEAT_SECONDS = 60.0


class Heartbeat:
    """Use from the loop's thread."""

    def __init__(self, loop: Loop, persistence: Persistence, latest: Callable[[], Report]) -> None:
        self._loop = loop
        self._persistence = persistence
        self._latest = latest

    def start(self) -> None:
        """At once: an agent that crashes in its first minute has lived, too."""
        self.beat()
        self._loop.every(BEAT_SECONDS, self.beat)

    def stop(self) -> None:
        """An end in order."""
        self._keep(stopped=time.time())

    def beat(self) -> None:
        """That the agent runs now, and whether what happens is planned."""
        self._keep(stopped=None)

    def _keep(self, stopped: float | None) -> None:
        report = self._latest()
        planned = report.maintenance is not None
        self._persistence.put_agent_run(
            replace(report.agent_runs[-1], last=time.time(), stopped=stopped, planned=planned)
        )
