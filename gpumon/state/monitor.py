"""The Monitor, which holds the latest Report. Each message replaces the whole Report."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from gpumon.clock import boot_clock
from gpumon.model.instant import Now
from gpumon.state.messages import Message
from gpumon.state.reduce import reduce
from gpumon.state.report import Report
from gpumon.state.section import ReducerSettings
from gpumon.state.sections import changes

log = logging.getLogger("gpumon")

BEAT_SECONDS = 1.0
MAX_BEAT_SECONDS = 2 * BEAT_SECONDS
"""Maximum seconds by which the uptime increases between two clock readings. For any further seconds the daemon itself
was stopped.
"""


class Monitor:
    """Holds the latest Report, which any thread may read, and applies messages to it in the main loop."""

    def __init__(self, first: Report, settings: ReducerSettings) -> None:
        self.latest = first
        self._read_at = boot_clock()
        self._uptime = 0.0
        self.settings = settings
        self.listeners: list[Callable[[], object]] = []
        """Functions that are called after each message, when `latest` is the new Report."""

    def apply(self, settings: ReducerSettings) -> None:
        """Use these settings, after a reload of the configuration, for all further messages."""
        self.settings = settings

    def take(self, message: Message) -> None:
        """Apply a message to the latest Report, log what has changed on the node, and call the listeners."""
        before = self.latest
        self.latest = reduce(before, message, self._now(), self.settings)
        for change in changes(before, self.latest):
            log.log(change.level, change.message, extra=change.fields)
        for listener in self.listeners:
            listener()

    def beat(self) -> None:
        """Add the time since the last call of `beat` or `take` to the uptime. Call it every BEAT_SECONDS."""
        self._now()

    def _now(self) -> Now:
        at = boot_clock()
        self._uptime += min(at - self._read_at, MAX_BEAT_SECONDS)
        self._read_at = at
        return Now(at=at, wall=time.time(), uptime=self._uptime)
