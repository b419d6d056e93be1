"""Reads one opened GPU in turns: a fast one completely at each poll, a slow one a part at each poll."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from gpumon.clock import boot_clock
from gpumon.collectors.nvml.gpu_reader import GpuReader
from gpumon.model.reading import FAST, ONCE, RARE, SLOW, Tier

SLOW_SECONDS = 0.5
"""A GPU whose part of a poll takes longer is slow: it continues at the next poll, so that its neighbours do not
wait.
"""
FAST_TURNS = 2.5
"""Factor for the fast tier: nothing of a GPU is reported before its fast tier is complete."""
CALL_SECONDS = 1e-3
"""A step that takes longer has made a slow driver call."""
ASLEEP_SECONDS = 5.0
"""No call lasts this long, because the daemon kills such a child. The host was suspended or the child was stopped;
the GPU is not slow.
"""
ALL_TIERS = (SLOW, RARE, FAST, ONCE)
"""Tiers of a GPU that was just opened, last one first. RARE comes before SLOW: it reads the number of links that
SLOW needs.
"""
LAST = {FAST: 1, ONCE: 2}
"""Position of tiers in the list of due ones, which is read from its end."""


class Tally:
    """Totals of one poll over its GPUs."""

    def __init__(self, tiers: Sequence[Tier]) -> None:
        self.durations: dict[Tier, float] = dict.fromkeys(tiers, 0.0)
        self.errors: Counter[str] = Counter()
        self.denied: set[str] = set()
        self.opened_slowly = False
        """True if a GPU took long to open: the open GPUs are read before the next one is opened."""


class Turns:
    """One opened GPU, read in turns.

    `patience`: maximum seconds of a turn. `gap`: maximum seconds that the GPU may then pause.
    """

    def __init__(self, reader: GpuReader, patience: float, gap: float) -> None:
        self.reader = reader
        self.rest_until = 0.0
        self._patience = patience
        self._gap = gap
        self._todo: list[Tier] = list(ALL_TIERS)
        """Due tiers, the next one last."""
        self._begun: dict[Tier, Iterator[None]] = {}
        """Tiers whose reading was interrupted."""

    def hurry(self) -> None:
        """Read the slow tier at once and check again what is supported: the driver reported a change."""
        self.rest_until = 0.0
        self._add(SLOW)
        self.reader.device.forget()

    def take(self, tally: Tally) -> bool:
        """Read what is due. Returns whether the fast tier was completed: only then is there something to report."""
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
        """Continue a tier, by at least one call, as long as the turn lasts. Returns whether it was completed."""
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
