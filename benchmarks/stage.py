"""What is wrong with the node at a moment of a soak, since when, and what may therefore be shown of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from agents import Agent

from benchmarks.turmoil import TROUBLES, XIDS, Trouble
from gpumon.clock import boot_clock

GPUS = 8
NODE = -1
"""In place of a GPU's number."""
HIDDEN_SECONDS = 20.0
"""How long readings may outlive what hides their GPU: until a call is late or they are old, and what that takes."""
HEALED_SECONDS = 45.0
"""How long a GPU may take to be read again: a trial is due, and the sampler is replaced."""
NODE_TROUBLES = [one for one in TROUBLES if one.node]
GPU_TROUBLES = [one for one in TROUBLES if not one.node]


@dataclass
class Present:
    """A trouble that is there now."""

    trouble: Trouble
    value: Any
    since: float


@dataclass
class Stage:
    """The scenario as it stands. Every change is written at once, and told."""

    agent: Agent
    chance: Random
    tell: Callable[[str], None]
    present: dict[tuple[int, str], Present] = field(default_factory=dict)
    """By GPU, or NODE, and key."""
    xids: dict[int, list[Any]] = field(default_factory=dict)
    given_away: set[int] = field(default_factory=set)
    """GPUs that belong to another driver, or did: who counts for them begins anew."""
    settled_at: float = 0.0
    """From when on every GPU without a trouble of its own must be read."""
    healed_at: dict[int, float] = field(default_factory=dict)

    def write(self) -> None:
        """As the scenario file."""
        scenario: dict[str, Any] = {"idle": True}
        gpus: dict[int, dict[str, Any]] = {gpu: {"xids": xids} for gpu, xids in self.xids.items()}
        for (gpu, key), one in self.present.items():
            (scenario if gpu == NODE else gpus.setdefault(gpu, {}))[key] = one.value
        self.agent.simulate({**scenario, "gpus": gpus})

    def harm(self, *, node: bool) -> None:
        """One more trouble, of the node or of one GPU."""
        gpu = NODE if node else self.chance.randrange(GPUS)
        trouble = self.chance.choice(NODE_TROUBLES if node else GPU_TROUBLES)
        value = trouble.value(self.chance)
        self.tell(f"{'node' if node else f'GPU {gpu}'}: {trouble.key} {value}")
        self.present[gpu, trouble.key] = Present(trouble, value, boot_clock())
        if trouble.disturbs:
            self.unsettle(trouble.disturbs)
        if trouble.key == "bound":
            self.given_away.add(gpu)
        self.write()

    def heal(self, *, everything: bool = False) -> None:
        """Take one trouble away, or all."""
        gone = list(self.present) if everything else self.chance.sample(sorted(self.present), min(1, len(self.present)))
        for gpu, key in gone:
            self.tell(f"healed: {'node' if gpu == NODE else f'GPU {gpu}'}: {key}")
            one = self.present.pop((gpu, key))
            if one.trouble.disturbs:
                self.unsettle(one.trouble.disturbs)
            for healed in range(GPUS) if gpu == NODE else (gpu,):
                self.healed_at[healed] = boot_clock()
        self.write()

    def send_xid(self) -> None:
        """To a GPU; firmware that falls silent has the GPU set aside until it is tried."""
        gpu, xid = self.chance.randrange(GPUS), self.chance.choice(XIDS)
        self.tell(f"GPU {gpu}: Xid {xid}")
        self.xids.setdefault(gpu, []).append(xid)
        if xid in {119, 120}:
            self.healed_at[gpu] = boot_clock()
            self.unsettle(HIDDEN_SECONDS)
        self.write()

    def unsettle(self, seconds: float) -> None:
        """For so long, nobody's readings are asked for."""
        self.settled_at = max(self.settled_at, boot_clock() + seconds)

    def settle(self) -> None:
        """All is well now, and has to stay so."""
        self.settled_at = boot_clock()
        self.healed_at.clear()

    def slept(self, seconds: float) -> None:
        """The agent was stopped for so long, and so was its time."""
        for one in self.present.values():
            one.since += seconds
        self.unsettle(HIDDEN_SECONDS)

    def troubles(self, gpu: int) -> Iterator[Present]:
        """Of this GPU and of the node."""
        return (one for (whose, _), one in self.present.items() if whose in {gpu, NODE})

    def is_hidden(self, gpu: int, at: float) -> bool:
        """Whether nothing may be shown of it at this time."""
        return any(one.trouble.hides and at - one.since > HIDDEN_SECONDS for one in self.troubles(gpu))

    def is_well(self, gpu: int, at: float) -> bool:
        """Whether it must be read at this time."""
        if at < self.settled_at or at - self.healed_at.get(gpu, 0.0) < HEALED_SECONDS:
            return False
        return not any(True for _ in self.troubles(gpu))

    def sent(self) -> Counter[tuple[int, int]]:
        """How many of which Xid were sent to which GPU."""
        return Counter((gpu, xid) for gpu, xids in self.xids.items() for xid in xids)
