"""Holds the one mutable name: `latest`, replaced whole."""

from __future__ import annotations

import logging
import time

from gpumon.arrival import Arrival
from gpumon.fold import Moment, Terms, fold, watching
from gpumon.journal import changes
from gpumon.report import Report
from gpumon.snapshot.call_page import boot_clock

log = logging.getLogger("gpumon")


class Monitor:
    """`take` is called from the main loop alone; anybody may read `latest`. What changes is logged, once."""

    def __init__(self, first: Report, terms: Terms) -> None:
        self.latest = watching(first, terms)
        self.terms = terms

    def change(self, terms: Terms) -> None:
        """Fold on other terms from now on."""
        self.terms = terms
        self.latest = watching(self.latest, terms)

    def take(self, arrival: Arrival) -> None:
        """Fold one arrival into the next Report."""
        before = self.latest
        self.latest = fold(before, arrival, Moment(boot_clock(), time.time()), self.terms)
        for change in changes(before, self.latest):
            log.log(change.level, change.message, extra=change.words)
