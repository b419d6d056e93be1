"""Reads one opened GPU in turns: all that is due of one that answers quickly, of a slow one a part at each poll."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from gpumon.clock import boot_clock
from gpumon.collectors.nvml.gpu import GpuReader
from gpumon.model.reading import FAST, ONCE, RARE, SLOW, Tier

SLOW_SECONDS = 0.5
"""A GPU whose part of a poll takes longer is slow: it goes on at the next poll, for its neighbours must not wait."""
FAST_TURNS = 2.5
"""How many times as long a turn may last for the fast tier: all that is told of a GPU waits for it."""
CALL_SECONDS = 1e-3
"""A step that took longer has made a driver call, and a slow one."""
ASLEEP_SECONDS = 5.0
"""No call lasts this long, for the daemon ends a child that waits so long: it was the host that slept, or the child
that was stopped, and the GPU is not slow."""
ALL_TIERS = (SLOW, RARE, FAST, ONCE)
"""What is read of a GPU that has just been opened, from the last to the first. Rare comes before slow: it counts the
links that slow reads."""
LAST = {FAST: 1, ONCE: 2}
"""Where tiers stand in the order of what is due, of which the last is read first; others stand before them."""


class Tally:
    """What one poll adds up over its GPUs."""

    def __init__(self, tiers: Sequence[Tier]) -> None:
        self.durations: dict[Tier, float] = dict.fromkeys(tiers, 0.0)
        self.errors: Counter[str] = Counter()
        self.denied: set[str] = set()
        self.opened_slowly = False
        """A GPU took long to come up: those that are open are read before the next one is opened."""


class Turns:
    """One opened GPU, from which each poll takes a turn.

    `patience`: seconds that a turn may last; `gap`: longest that the GPU may then rest.
    """

    def __init__(self, reader: GpuReader, patience: float, gap: float) -> None:
        self.reader = reader
        self.rest_until = 0.0
        self._patience = patience
        self._gap = gap
        self._todo: list[Tier] = list(ALL_TIERS)
        """Tiers that are due, the next one last."""
        self._begun: dict[Tier, Iterator[None]] = {}
        """Of these, the ones whose reading was interrupted."""

    def hurry(self) -> None:
        """Something of the slow tier has changed, the driver says: read it at once, whatever was supported before."""
        self.rest_until = 0.0
        self._add(SLOW)
        self.reader.device.forget()

    def take(self, tally: Tally) -> bool:
        """Read what is due. Whether the fast tier was read to its end: only then is there anything to tell."""
        device, told = self.reader.device, False
        self._add(*tally.durations)
        if SLOW in tally.durations:
            self._add(*device.missed & {ONCE, RARE})
        self._todo.sort(key=lambda tier: LAST.get(tier, 0))
        began, ended = boot_clock(), True
        try:
            while self._todo and ended:
                tier, started = self._todo.pop(), boot_clock()
                ended = self._advance(tier, began)
                told |= ended and tier is FAST
                counted = tier if tier in tally.durations else FAST
                tally.durations[counted] += boot_clock() - started
        finally:
            tally.errors.update(device.errors)
            tally.denied.update(device.denied)
            device.errors.clear()
        return told

    def _add(self, *tiers: Tier) -> None:
        self._todo[:0] = [tier for tier in tiers if tier not in self._todo]

    def _advance(self, tier: Tier, began: float) -> bool:
        """Go on with a tier, by a call at least, for as long as this turn lasts. Whether it was read to its end."""
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
