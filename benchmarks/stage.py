"""Faults of the node at a moment of a soak, their start times, and what the page may therefore show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from agents import AgentProcess
from gpumon_sim.faults.keys import KEYS
from gpumon_sim.faults.row import FULL, FaultRow, at_time

from gpumon.clock import boot_clock

GPUS = 8
NODE = -1
"""Used in place of a GPU index."""
HIDDEN_SECONDS = 20.0
"""Max time for which readings may remain after their GPU has become unreadable."""
HEALED_SECONDS = 45.0
"""Max time until a GPU is read again: includes a trial and a replacement of the sampler."""
XIDS = (13, 31, 43, 48, 63, 74, 79, 94, 95, 119)


def troubles(*, node: bool) -> dict[str, list[FaultRow]]:
    """Return the faults of each key, for the node or for a GPU."""
    found = {
        key.key: [fault for fault in key.faults if fault.profile == FULL and bool(fault.steps[0].node) == node]
        for key in KEYS.values()
        if "soak" not in key.without
    }
    return {key: faults for key, faults in found.items() if faults}


@dataclass
class Present:
    """A fault that is active."""

    fault: FaultRow
    since: float

    @property
    def hides(self) -> bool:
        """Return whether the GPU cannot be read. Only the first step of a fault is present."""
        return self.fault.hides and len(self.fault.steps) == 1


@dataclass
class Stage:
    """The current scenario. Every change is written and logged at once."""

    agent: AgentProcess
    chance: Random
    note: Callable[[str], None]
    present: dict[tuple[int, str], Present] = field(default_factory=dict)
    """By GPU, or NODE, and key."""
    xids: dict[int, list[Any]] = field(default_factory=dict)
    given_away: set[int] = field(default_factory=set)
    """GPUs that are or were bound to another driver: their counters restart."""
    settled_at: float = 0.0
    """Time from which every GPU without a fault must be read."""
    healed_at: dict[int, float] = field(default_factory=dict)

    def write(self) -> None:
        """Write the scenario file."""
        scenario: dict[str, Any] = {"idle": True}
        gpus: dict[int, dict[str, Any]] = {gpu: {"xids": xids} for gpu, xids in self.xids.items()}
        for (gpu, _), one in self.present.items():
            (scenario if gpu == NODE else gpus.setdefault(gpu, {})).update(at_time(one.fault.scenario, 0.0))
        self.agent.simulate({**scenario, "gpus": gpus})

    def harm(self, *, node: bool) -> None:
        """Add a fault of the node or of one GPU."""
        gpu = NODE if node else self.chance.randrange(GPUS)
        choices = troubles(node=node)
        key = self.chance.choice(list(choices))
        fault = self.chance.choice(choices[key])
        self.note(f"{'node' if node else f'GPU {gpu}'}: {fault.scenario}")
        self.present[gpu, key] = Present(fault, boot_clock())
        if fault.disturbs:
            self.unsettle(fault.disturbs)
        if key == "bound":
            self.given_away.add(gpu)
        self.write()

    def heal(self, *, everything: bool = False) -> None:
        """Remove one fault, or all."""
        gone = list(self.present) if everything else self.chance.sample(sorted(self.present), min(1, len(self.present)))
        for gpu, key in gone:
            self.note(f"healed: {'node' if gpu == NODE else f'GPU {gpu}'}: {key}")
            fault = self.present.pop((gpu, key)).fault
            if fault.disturbs:
                self.unsettle(fault.disturbs)
            for healed in range(GPUS) if gpu == NODE else (gpu,):
                self.healed_at[healed] = boot_clock()
        self.write()

    def send_xid(self) -> None:
        """Send an Xid to a GPU; after Xid 119 or 120 the GPU is quarantined until a trial."""
        gpu, xid = self.chance.randrange(GPUS), self.chance.choice(XIDS)
        self.note(f"GPU {gpu}: Xid {xid}")
        self.xids.setdefault(gpu, []).append(xid)
        if xid in {119, 120}:
            self.healed_at[gpu] = boot_clock()
            self.unsettle(HIDDEN_SECONDS)
        self.write()

    def unsettle(self, seconds: float) -> None:
        """Require no readings of any GPU for this time."""
        self.settled_at = max(self.settled_at, boot_clock() + seconds)

    def settle(self) -> None:
        """Require readings of all GPUs from now on."""
        self.settled_at = boot_clock()
        self.healed_at.clear()

    def slept(self, seconds: float) -> None:
        """Move start times by the time for which the agent was stopped."""
        for each in self.present.values():
            each.since += seconds
        self.unsettle(HIDDEN_SECONDS)

    def troubles(self, gpu: int) -> Iterator[Present]:
        """Return the active faults of this GPU and of the node."""
        return (one for (whose, _), one in self.present.items() if whose in {gpu, NODE})

    def is_hidden(self, gpu: int, at: float) -> bool:
        """Return whether the page may show no readings of this GPU at this time."""
        return any(one.hides and at - one.since > HIDDEN_SECONDS for one in self.troubles(gpu))

    def is_healthy(self, gpu: int, at: float) -> bool:
        """Return whether this GPU must be read at this time."""
        if at < self.settled_at or at - self.healed_at.get(gpu, 0.0) < HEALED_SECONDS:
            return False
        return not any(True for _ in self.troubles(gpu))

    def sent(self) -> Counter[tuple[int, int]]:
        """Return the number of Xids sent, by GPU and Xid."""
        return Counter((gpu, xid) for gpu, xids in self.xids.items() for xid in xids)
