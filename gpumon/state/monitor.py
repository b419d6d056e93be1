"""Holds the one mutable name: `latest`, replaced whole."""

from __future__ import annotations

import logging
import time

from gpumon.clock import boot_clock
from gpumon.model.now import Now
from gpumon.state.change_log import changes
from gpumon.state.messages import Message
from gpumon.state.reduce import reduce
from gpumon.state.report import Report
from gpumon.state.settings import ReducerSettings

log = logging.getLogger("gpumon")

BEAT_SECONDS = 1.0
LONGEST_PAUSE = 2 * BEAT_SECONDS
"""Seconds between two looks at the clock after which the daemon itself was stopped."""


class Monitor:
    """`take` is called from the main loop alone; anybody may read `latest`. What changes is logged, once."""

    def __init__(self, first: Report, terms: ReducerSettings) -> None:
        self.latest = first
        self._looked_at = boot_clock()
        self._lived = 0.0
        self.terms = terms

    def apply(self, terms: ReducerSettings) -> None:
        """Reduce with these settings from now on."""
        self.terms = terms

    def take(self, arrival: Message) -> None:
        """Fold one arrival into the next Report."""
        before = self.latest
        self.latest = reduce(before, arrival, self._now(), self.terms)
        for change in changes(before, self.latest):
            log.log(change.level, change.message, extra=change.words)

    def beat(self) -> None:
        """To be called every BEAT_SECONDS, whatever arrives: time goes by while the daemon runs."""
        self._now()

    def _now(self) -> Now:
        at = boot_clock()
        self._lived += min(at - self._looked_at, LONGEST_PAUSE)
        self._looked_at = at
        return Now(at=at, wall=time.time(), uptime=self._lived)
