"""Simulates NVML events: when Xids and MIG changes occur, and which of them each event set has delivered."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from gpumon_sim.mig import WHOLE_GPU

XID, MIG_CHANGED = 0x8, 0x100
"""NVML's event type bits: a critical Xid error, and a change of the MIG configuration."""
_QUEUE = 1000
"""Maximum number of undelivered Xids of a repeated ScenarioXid in an event set. The oldest are dropped."""


class ScenarioXid(NamedTuple):
    """An Xid error that a scenario injects once or, with `rate`, repeatedly.

    Times are seconds since the simulation began.
    """

    xid: int
    at: float | None = None
    """Time of the Xid or, with `rate`, start of the repetition (None: 0). If a single Xid has no time, it occurs when
    its entry is added to the scenario file while the process runs; an entry that is in the file when the process starts
    is not delivered.
    """
    gpu_instance: int = WHOLE_GPU
    compute_instance: int = WHOLE_GPU
    rate: float | None = None
    """Xids per second, from `at` to `until`; None for a single Xid."""
    until: float = math.inf


class Message(NamedTuple):
    """One event of a simulated GPU, as an event set delivers it.

    `datum` is the Xid, or 0 for a MIG change. `number` distinguishes events that are otherwise equal.
    """

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
    """A client's NVML event set. `registered` has, by GPU, the event type bits and the time of the registration."""

    registered: dict[int, tuple[int, float]] = field(default_factory=dict)
    delivered: set[Message] = field(default_factory=set)
    delivered_of_storm: dict[tuple[int, ScenarioXid], int] = field(default_factory=dict)
    """Number of Xids that were delivered or dropped, by GPU and storm. A storm is a ScenarioXid with a rate."""

    def next(
        self, arrivals: dict[int, list[Message]], storms: dict[int, list[ScenarioXid]], now: float
    ) -> Message | None:
        """Return the next undelivered event since the registration and mark it as delivered; None if there is none.

        `arrivals` has, by GPU, the single events that have occurred, `storms` the Xids with a rate; `now` is in seconds
        since the simulation began. Single events are returned first, in the order of their time, whatever their GPU.
        """
        message = min(self._new_messages(arrivals), default=None)
        if message is not None:
            self.delivered.add(message)
            return message
        return next(self._of_storms(storms, now), None)

    def _new_messages(self, arrivals: dict[int, list[Message]]) -> Iterator[Message]:
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
