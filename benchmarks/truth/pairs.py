"""Two faults at once, on different GPUs and on the same one: each must be found or inhibited by the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from gpumon_sim.faults.row import FaultRow
from gpumon_sim.profiles import PROFILES

from benchmarks.truth.measure import AFTERWARDS, Trial, world_of
from benchmarks.truth.rows import MEASURED_FAULTS

NAMES = (
    "fell off the bus: Xid 79, and lost to NVML",
    "vanished from the PCI bus",
    "needs a reset",
    "a driver call on it does not return",
    "Xid 48: an uncorrectable error in memory",
    "Xid 95: an uncontained memory error",
    "an uncorrectable error in SRAM",
    "a row that could not be remapped",
    "one NVLink is down",
    "half of its PCIe lanes are gone",
    "clocks reduced by a power brake",
    "a port is down",
)
"""One or two faults of each kind."""
BESIDE = {
    "one GPU slows the all-reduce down": ("clocks reduced by a hardware slowdown", "one NVLink is down"),
    "one GPU returns wrong data in the all-reduce": ("one NVLink is down",),
}
"""Faults that the all-reduce detects, and their possible causes."""
PAIRED_ON = ("h100x8", "a100x8")
FIRST, SECOND = 1, 5
"""GPUs of a pair on different GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOutcome:
    """Result of two faults on one node."""

    names: tuple[str, str]
    profile: str
    same_gpu: bool
    found: tuple[bool, bool]
    hidden: tuple[bool, bool]
    """Whether the other fault makes the GPU unreadable."""
    inhibited: tuple[bool, bool]
    """Whether another verdict inhibits it."""
    others: tuple[str, ...] = ()

    @property
    def right(self) -> bool:
        return all(found or hidden for found, hidden in zip(self.found, self.hidden, strict=True))


def pairs() -> Iterator[tuple[str, str, str, bool]]:
    """Yield the names, the profile, and whether both faults are on the same GPU."""
    by_name = {fault.name: fault for fault in MEASURED_FAULTS}
    for profile in PAIRED_ON:
        known = [by_name[name] for name in NAMES if by_name[name].on(PROFILES[profile])]
        beside = ((by_name[one], by_name[other]) for one, others in BESIDE.items() for other in others)
        for one, other in (*combinations(known, 2), *beside):
            for same in (False, True) if one.where == other.where == "gpu" else (False,):
                yield one.name, other.name, profile, same


def measure_pair(one: FaultRow, other: FaultRow, profile: str, *, same_gpu: bool) -> PairOutcome:
    """Measure two faults at once."""
    placed = [(FIRST, one), (FIRST if same_gpu else SECOND, other)]
    with world_of(profile, [one, other]) as world:
        trial = Trial(world, placed)
        trial.begin()
        trial.await_verdicts()
        trial.advance(AFTERWARDS)
        keys, last = trial.keys, [trial.last.get(key) for key in trial.keys]
        return PairOutcome(
            names=(one.name, other.name),
            profile=profile,
            same_gpu=same_gpu,
            found=(keys[0] in trial.raised_after, keys[1] in trial.raised_after),
            hidden=(same_gpu and other.hides, same_gpu and one.hides),
            inhibited=(bool(last[0] and last[0].inhibited_by), bool(last[1] and last[1].inhibited_by)),
            others=trial.others(world, keys),
        )
