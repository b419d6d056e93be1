"""Limit how long one poll reads one opened GPU. The part of a poll that reads one GPU is called a turn.

A fast GPU is read completely in one turn, a slow GPU in several turns, in as many polls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from gpumon.clock import boot_clock
from gpumon.collectors.nvml.gpu_reader import GpuReader
from gpumon.model.reading import FAST, ONCE, RARE, SLOW, Tier

SLOW_SECONDS = 0.5
"""Seconds after which the reading of a GPU in a poll is interrupted, and continued in a later poll, so that other GPUs
do not wait.
"""
FAST_TURNS = 2.5
"""Factor by which the fast tier may take longer than other tiers before it is interrupted, because a GPU is reported
only when the fast tier is complete.
"""
CALL_SECONDS = 1e-3
"""A turn is interrupted only after a step that took more than this number of seconds. A step is the driver calls of a
reading between two yields.
"""
ASLEEP_SECONDS = 5.0
"""Max seconds of a step that counts as part of its turn. A longer step means that the host was suspended or the child
was stopped, because the daemon kills a child whose driver call takes that long.
"""
ALL_TIERS = (SLOW, RARE, FAST, ONCE)
"""Tiers that are due for a GPU that was just opened. They are sorted by LAST and read from the end: first ONCE, then
FAST, RARE and SLOW. SLOW comes last because it needs the number of links, which ONCE and RARE read.
"""
LAST = {FAST: 1, ONCE: 2}
"""Sort key of a tier in the list of due tiers. The highest key is read first. Other tiers have the key 0."""


class Tally:
    """Totals of one poll over all GPUs: seconds by tier, number of errors, and queries that the driver denied."""

    def __init__(self, tiers: Sequence[Tier]) -> None:
        self.durations: dict[Tier, float] = dict.fromkeys(tiers, 0.0)
        self.errors: Counter[str] = Counter()
        self.denied: set[str] = set()
        self.opened_slowly = False
        """True if opening a GPU took long in this poll. The poll then opens no further GPU."""


class Turns:
    """Reads one opened GPU for a limited time in each poll, and remembers where an interrupted reading continues.

    `patience`: seconds after which a reading is interrupted; FAST_TURNS times as many for the fast tier. After an
    interruption the GPU is not read for as long as the turn lasted, but at most `gap` seconds.
    """

    def __init__(self, reader: GpuReader, patience: float, gap: float) -> None:
        self.reader = reader
        self.rest_until = 0.0
        self._patience = patience
        self._gap = gap
        self._todo: list[Tier] = list(ALL_TIERS)
        """Tiers that are due. The last tier in the list is read next."""
        self._begun: dict[Tier, Iterator[None]] = {}
        """The generator of each tier whose reading was interrupted."""

    def hurry(self) -> None:
        """Make the slow tier due at once, and forget what the GPU supports, because the driver reported a change."""
        self.rest_until = 0.0
        self._add(SLOW)
        self.reader.device.forget()

    def take(self, tally: Tally) -> bool:
        """Read the tiers that are due until all are complete or the turn is over, and add to the totals in `tally`.

        Return True if the fast tier was completed. Only then is the GPU reported in this poll. Raise GpuFaultError if
        the whole GPU fails.
        """
        device, completed = self.reader.device, False
        self._add(*tally.durations)
        if SLOW in tally.durations:
            self._add(*device.missed & {ONCE, RARE})
        self._todo.sort(key=lambda tier: LAST.get(tier, 0))
        began, ended = boot_clock(), True
        try:
            while self._todo and ended:
                tier, started = self._todo.pop(), boot_clock()
                ended = self._advance(tier, began)
                completed |= ended and tier is FAST
                counted = tier if tier in tally.durations else FAST
                tally.durations[counted] += boot_clock() - started
        finally:
            tally.errors.update(device.errors)
            tally.denied.update(device.denied)
            device.errors.clear()
        return completed

    def _add(self, *tiers: Tier) -> None:
        self._todo[:0] = [tier for tier in tiers if tier not in self._todo]

    def _advance(self, tier: Tier, began: float) -> bool:
        """Begin or continue to read a tier, until the tier is complete or the turn, which started at `began`, is over.

        Return True if the tier was completed.
        """
        steps = self._begun.pop(tier, None)
        if steps is None:
            steps = self.reader.read(tier)
        else:
            self.reader.device.turn_to(tier)
        max_seconds = self._patience * (FAST_TURNS if tier is FAST else 1)
        stepped = boot_clock()
        for _ in steps:
            before, stepped = stepped, boot_clock()
            step = stepped - before
            if step > ASLEEP_SECONDS:
                began += step
            took = stepped - began
            if took > max_seconds and step > CALL_SECONDS:
                self.rest_until = stepped + min(took, self._gap)
                self._begun[tier] = steps
                self._add(tier)
                return False
        return True
