"""Events: what happened when, and what has been told to those who wait."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from gpumon.sim.mig import WHOLE_GPU

XID, MIG_CHANGED = 0x8, 0x100
"""NVML's types of event."""
_QUEUE = 1000
"""Events that the driver keeps for a set: of a storm, the last ones."""


class Xid(NamedTuple):
    """An Xid of the scenario; times in seconds after the epoch."""

    xid: int
    at: float | None = None
    """None for when the file is seen to have it."""
    gpu_instance: int = WHOLE_GPU
    compute_instance: int = WHOLE_GPU
    rate: float | None = None
    """How many a second, from `at` to `until`; None for a single one."""
    until: float = math.inf


class Message(NamedTuple):
    """An event, when it happened, and which of those that are alike it is."""

    time: float
    gpu: int
    type: int
    datum: int
    gpu_instance: int
    compute_instance: int
    number: int


def arrival(xid: Xid, time: float, gpu: int, number: int) -> Message:
    return Message(time, gpu, XID, xid.xid, xid.gpu_instance, xid.compute_instance, number)


@dataclass(slots=True)
class EventSet:
    """What a set waits for: by GPU, the types and since when."""

    registered: dict[int, tuple[int, float]] = field(default_factory=dict)
    delivered: set[Message] = field(default_factory=set)
    told: dict[tuple[int, Xid], int] = field(default_factory=dict)
    """Of the storms, how many of their Xids."""

    def next(self, arrivals: dict[int, list[Message]], storms: dict[int, list[Xid]], now: float) -> Message | None:
        """The first that came after registration and has not been delivered; it counts as delivered now."""
        found = min(self._new(arrivals), default=None)
        if found is not None:
            self.delivered.add(found)
            return found
        return next(self._of_storms(storms, now), None)

    def _new(self, arrivals: dict[int, list[Message]]) -> Iterator[Message]:
        for gpu, (types, since) in self.registered.items():
            for one in arrivals[gpu]:
                if types & one.type and one.time > since and one not in self.delivered:
                    yield one

    def _of_storms(self, storms: dict[int, list[Xid]], now: float) -> Iterator[Message]:
        for gpu, (types, since) in self.registered.items():
            for storm in storms[gpu] if types & XID else ():
                begins = max(since, storm.at or 0.0)
                due = int((storm.rate or 0.0) * max(0.0, min(now, storm.until) - begins))
                told = max(self.told.get((gpu, storm), 0), due - _QUEUE)
                if told < due:
                    self.told[gpu, storm] = told + 1
                    yield arrival(storm, now, gpu, told)
