"""Events: when each happened, and which of them each event set has delivered."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from gpumon.sim.mig import WHOLE_GPU

XID, MIG_CHANGED = 0x8, 0x100
"""NVML's event types."""
_QUEUE = 1000
"""Maximum number of undelivered events that the driver keeps for a set: the newest ones."""


class ScenarioXid(NamedTuple):
    """An Xid of the scenario. Times are seconds after the epoch."""

    xid: int
    at: float | None = None
    """None: the Xid happens when a process first reads it in the file."""
    gpu_instance: int = WHOLE_GPU
    compute_instance: int = WHOLE_GPU
    rate: float | None = None
    """Events a second, from `at` to `until`; None for a single event."""
    until: float = math.inf


class Message(NamedTuple):
    """An event, the time it happened, and its sequence number among equal ones."""

    time: float
    gpu: int
    type: int
    datum: int
    gpu_instance: int
    compute_instance: int
    number: int


def arrival(xid: ScenarioXid, time: float, gpu: int, number: int) -> Message:
    return Message(time, gpu, XID, xid.xid, xid.gpu_instance, xid.compute_instance, number)


@dataclass(slots=True)
class SimEventSet:
    """An event set: the registered event types and the registration time, by GPU."""

    registered: dict[int, tuple[int, float]] = field(default_factory=dict)
    delivered: set[Message] = field(default_factory=set)
    delivered_of_storm: dict[tuple[int, ScenarioXid], int] = field(default_factory=dict)
    """Number of Xids delivered, by storm."""

    def next(
        self, arrivals: dict[int, list[Message]], storms: dict[int, list[ScenarioXid]], now: float
    ) -> Message | None:
        """Return the first undelivered event after registration, and mark it as delivered."""
        message = min(self._new(arrivals), default=None)
        if message is not None:
            self.delivered.add(message)
            return message
        return next(self._of_storms(storms, now), None)

    def _new(self, arrivals: dict[int, list[Message]]) -> Iterator[Message]:
        for gpu, (types, since) in self.registered.items():
            for message in arrivals[gpu]:
                if types & message.type and message.time > since and message not in self.delivered:
                    yield message

    def _of_storms(self, storms: dict[int, list[ScenarioXid]], now: float) -> Iterator[Message]:
        for gpu, (types, since) in self.registered.items():
            for storm in storms[gpu] if types & XID else ():
                begins = max(since, storm.at or 0.0)
                due = int((storm.rate or 0.0) * max(0.0, min(now, storm.until) - begins))
                delivered = max(self.delivered_of_storm.get((gpu, storm), 0), due - _QUEUE)
                if delivered < due:
                    self.delivered_of_storm[gpu, storm] = delivered + 1
                    yield arrival(storm, now, gpu, delivered)
