"""Read an opened GPU in turns: a fast GPU completely at each poll, a slow GPU in parts at successive polls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from gpumon.clock import boot_clock
from gpumon.collectors.nvml.gpu_reader import GpuReader
from gpumon.model.reading import FAST, ONCE, RARE, SLOW, Tier

SLOW_SECONDS = 0.5
"""Seconds after which a GPU's part of a poll is interrupted and continued at the next poll, so that other GPUs do
not wait.
"""
FAST_TURNS = 2.5
"""Factor on SLOW_SECONDS for the fast tier, which must be complete before anything of a GPU is reported."""
CALL_SECONDS = 1e-3
"""Seconds after which a step counts as a slow driver call."""
ASLEEP_SECONDS = 5.0
"""Seconds that no driver call lasts, because the daemon kills such a child. A longer step means that the host was
suspended or the child was stopped, not that the GPU is slow.
"""
ALL_TIERS = (SLOW, RARE, FAST, ONCE)
"""Tiers of a GPU that was just opened, the first one to read last. RARE is read before SLOW, which needs the number
of links.
"""
LAST = {FAST: 1, ONCE: 2}
"""Position of a tier in the list of due tiers, which is read from its end. Other tiers have 0."""


class Tally:
    """Totals of one poll over all GPUs: seconds by tier, errors, and queries that lacked permission."""

    def __init__(self, tiers: Sequence[Tier]) -> None:
        self.durations: dict[Tier, float] = dict.fromkeys(tiers, 0.0)
        self.errors: Counter[str] = Counter()
        self.denied: set[str] = set()
        self.opened_slowly = False
        """Whether opening a GPU took long in this poll. Then no other GPU is opened in this poll."""


class Turns:
    """The turns of one opened GPU, which remember where an interrupted reading continues.

    `patience`: max seconds of a turn. `gap`: max seconds that the GPU may then pause.
    """

    def __init__(self, reader: GpuReader, patience: float, gap: float) -> None:
        self.reader = reader
        self.rest_until = 0.0
        self._patience = patience
        self._gap = gap
        self._todo: list[Tier] = list(ALL_TIERS)
        """Due tiers, the next one last."""
        self._begun: dict[Tier, Iterator[None]] = {}
        """Iterators of tiers whose reading was interrupted."""

    def hurry(self) -> None:
        """Read the slow tier at once and detect again what is supported, because the driver reported a change."""
        self.rest_until = 0.0
        self._add(SLOW)
        self.reader.device.forget()

    def take(self, tally: Tally) -> bool:
        """Read the due tiers. Return whether the fast tier was completed; only then the GPU has something to report."""
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
        """Continue the reading of a tier, by at least one call, until it is complete or the turn is over.

        Return whether it was completed.
        """
        steps = self._begun.pop(tier, None) or self.reader.read(tier)
        most = self._patience * (FAST_TURNS if tier is FAST else 1)
        stepped = boot_clock()
        for _ in steps:
            before, stepped = stepped, boot_clock()
            step = stepped - before
            if step > ASLEEP_SECONDS:
                began += step
            took = stepped - began
            if took > most and step > CALL_SECONDS:
                self.rest_until = stepped + min(took, self._gap)
                self._begun[tier] = steps
                self._add(tier)
                return False
        return True
