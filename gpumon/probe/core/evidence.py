"""Finds unusual readings of GPUs during a run: errors, low clocks, uneven traffic, missing peer access. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from types import MappingProxyType

HELD_DOWN = {
    "hw_thermal": "heat (hardware)",
    "sw_thermal": "heat (driver)",
    "hw_power_brake": "the power brake of its board",
    "hw_slowdown": "hardware (heat or power)",
    "sw_power_cap": "its power limit",
    "applications_clocks": "applications clocks",
    "board_limit": "a limit of its board",
    "reliability": "its voltage",
}
"""Clock event reasons that reduce clocks, each with the words that describe it in a finding."""
ALWAYS_ODD = ("hw_thermal", "sw_thermal", "hw_power_brake", "hw_slowdown")
"""Clock event reasons that are always reported. Another is not if half of the others or more have it."""
MIN_SECONDS = 0.01
"""Min growth of the counter of a clock event reason that no sample shows. Operations of a probe take milliseconds."""
LESS = 0.8
"""A GPU or NVLink is reported if its clock, speed or traffic is below this share of the median of the others."""
MIN_BYTES = 1e9
"""The NVLink traffic of a GPU is compared with that of the other GPUs only if their median exceeds this many bytes."""
MIN_LINK_BYTES = 1e8
"""An NVLink is compared with the others to the same peer only if their median traffic exceeds this many bytes."""
MIN_REPLAYS = 10.0
OTHERS = 2
"""Min number of other GPUs or links that a comparison needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """Readings of one GPU from one poll. Counters are totals, not increases. None means unknown."""

    index: int
    uuid: str
    at: float
    """Wall time of the reading in seconds since the epoch. The wall clock may be stepped back."""
    fault: str = ""
    xids: Mapping[str, float] = field(default_factory=dict)
    ecc_errors: float | None = None
    held_down: Collection[str] = ()
    """Clock event reasons that reduced the GPU's clocks when it was read: keys of HELD_DOWN."""
    held_seconds: Mapping[str, float] = field(default_factory=dict)
    """Total seconds of reduced clocks by clock event reason."""
    sm_clock: float | None = None
    links_down: Collection[str] = ()
    link_errors: Mapping[str, float] = field(default_factory=dict)
    """Total errors and recoveries of NVLinks, keyed by link number and description, such as `3 had replay errors`."""
    link_speed: float | None = None
    """Speed of the GPU's slowest NVLink in bytes per second and direction."""
    link_bytes: float | None = None
    """Total bytes received and sent over all NVLinks."""
    each_link_bytes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Total bytes of each NVLink by peer (PCI address or type such as switch) and link number."""
    peer_access: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """NVML's peer access status, by UUID of the other GPU and capability."""
    fabric: Collection[str] = ()
    """Names of the health checks of the NVLink fabric that fail."""
    pcie_generation: float | None = None
    pcie_generation_max: float | None = None
    pcie_width: float | None = None
    pcie_width_max: float | None = None
    pcie_errors: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuObservations:
    """Summary of the readings of one GPU, from just before a run began until now."""

    first: GpuSample
    last: GpuSample
    samples_taken: int = 1
    held_down: Mapping[str, int] = field(default_factory=dict)
    """Number of samples in which a clock event reason was active, by reason (keys of HELD_DOWN)."""
    sm_clock: float | None = None
    """Highest SM clock in hertz. The highest is used because an idle GPU lowers its clock."""
    pcie_generation: float | None = None
    """Highest PCIe generation. The highest is used because an idle GPU lowers it by design."""
    each_link_bytes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """`each_link_bytes` of the first sample that has it, which may be taken after the run has begun."""

    def increase(self, total: Callable[[GpuSample], Mapping[str, float]]) -> dict[str, float]:
        """Return the growth of each counter that grew. A counter that the first sample lacks starts at 0."""
        before = total(self.first)
        grown = {key: value - before.get(key, 0.0) for key, value in total(self.last).items()}
        return {key: more for key, more in grown.items() if more > 0}


Observations = Mapping[str, GpuObservations]
"""Summary of the readings of each GPU of a run, by GPU UUID."""
NO_OBSERVATIONS: Observations = MappingProxyType({})
"""No observations, for a run on the CPU or a conclusion that needs none."""


def add_samples(observations: Observations, samples: Sequence[GpuSample]) -> Observations:
    """Return the observations with new samples added. A sample of the same time is of the same poll, and is ignored."""
    after = dict(observations)
    for sample in samples:
        gpu = observations.get(sample.uuid)
        if gpu is None:
            gpu = GpuObservations(first=sample, last=sample, samples_taken=0)
        elif sample.at == gpu.last.at:
            continue
        after[sample.uuid] = replace(
            gpu,
            last=sample,
            samples_taken=gpu.samples_taken + 1,
            held_down={**gpu.held_down, **{reason: gpu.held_down.get(reason, 0) + 1 for reason in sample.held_down}},
            sm_clock=_highest_value(gpu.sm_clock, sample.sm_clock),
            each_link_bytes=gpu.each_link_bytes or sample.each_link_bytes,
            pcie_generation=_highest_value(gpu.pcie_generation, sample.pcie_generation),
        )
    return after


def _highest_value(*values: float | None) -> float | None:
    return max((value for value in values if value is not None), default=None)


# Findings


def findings(observations: Observations) -> dict[str, tuple[str, ...]]:
    """Return the findings about each GPU that has any, by UUID: phrases that can follow its name and a colon."""
    all_words = {}
    for uuid, gpu in observations.items():
        others = [other for key, other in observations.items() if key != uuid]
        words = tuple(word for find in _FINDERS for word in find(gpu, others))
        if words:
            all_words[uuid] = words
    return all_words


def finding_sentences(observations: Observations) -> tuple[str, ...]:
    all_words = findings(observations)
    return tuple(f"{name(uuid, observations)}: {word}." for uuid, words in all_words.items() for word in words)


def name(uuid: str, observations: Observations) -> str:
    """Return the name of a GPU for use in sentences: index and UUID, or only the UUID if the GPU was not observed."""
    return f"GPU {observations[uuid].last.index} ({uuid})" if uuid in observations else f"GPU {uuid}"


def _error_findings(gpu: GpuObservations, _others: Sequence[GpuObservations]) -> Iterator[str]:
    if gpu.last.fault:
        yield f"it does not answer ({gpu.last.fault})"
    for xid, count in sorted(gpu.increase(lambda sample: sample.xids).items(), key=lambda item: int(item[0])):
        yield f"Xid {xid} occurred {_times(count)}"
    before, after = gpu.first.ecc_errors, gpu.last.ecc_errors
    if before is not None and after is not None and after > before:
        yield f"its memory had an uncorrected ECC error {_times(after - before)}"


def _times(count: float) -> str:
    return "once" if count == 1 else f"{count:.0f} times"


def _clock_findings(gpu: GpuObservations, others: Sequence[GpuObservations]) -> Iterator[str]:
    for reason, words in HELD_DOWN.items():
        ordinary = len(others) < OTHERS or sum(_was_held(other, reason) for other in others) * 2 >= len(others)
        if _was_held(gpu, reason) and (reason in ALWAYS_ODD or not ordinary):
            yield f"its clocks were held down by {words}"
    usual = _usual_value([other.sm_clock for other in others])
    if usual is not None and gpu.sm_clock is not None and gpu.sm_clock < LESS * usual:
        yield f"its SM clock reached {gpu.sm_clock / 1e9:.2f} GHz, that of the others {usual / 1e9:.2f}"


def _was_held(gpu: GpuObservations, reason: str) -> bool:
    seconds = gpu.increase(lambda sample: sample.held_seconds).get(reason, 0.0)
    return seconds >= MIN_SECONDS or bool(gpu.held_down.get(reason))


def _link_findings(gpu: GpuObservations, others: Sequence[GpuObservations]) -> Iterator[str]:
    for link in sorted(gpu.last.links_down, key=int):
        yield f"its NVLink {link} is down"
    for kind, count in sorted(gpu.increase(lambda sample: sample.link_errors).items()):
        yield f"its NVLink {kind}, {_times(count)}"
    usual = _usual_value([other.last.link_speed for other in others])
    if usual is not None and gpu.last.link_speed is not None and gpu.last.link_speed < LESS * usual:
        speed = gpu.last.link_speed
        yield f"an NVLink of it runs at {speed / 1e9:.1f} GB/s, those of the others at {usual / 1e9:.1f}"
    for check in sorted(gpu.last.fabric):
        yield f"its fabric reports {check.replace('_', ' ')}"
    # in collectives all GPUs move the same
    moved, usual = _link_bytes_moved(gpu), _usual_value([_link_bytes_moved(other) for other in others])
    if moved is not None and usual is not None and usual > MIN_BYTES and moved < LESS * usual:
        yield f"it moved {moved / 1e9:.1f} GB over its NVLinks, the others {usual / 1e9:.1f}"


def _link_bytes_moved(gpu: GpuObservations) -> float | None:
    first, last = gpu.first.link_bytes, gpu.last.link_bytes
    return None if first is None or last is None or last < first else last - first


def _uneven_link_findings(gpu: GpuObservations, _others: Sequence[GpuObservations]) -> Iterator[str]:
    for place, totals in gpu.last.each_link_bytes.items():
        before = gpu.each_link_bytes.get(place, {})
        up = before.keys() - set(gpu.last.links_down)
        moved = {link: total - before[link] for link, total in totals.items() if link in up and total >= before[link]}
        for link in sorted(moved, key=int):
            usual = _usual_value([other for number, other in moved.items() if number != link])
            if usual is not None and usual > MIN_LINK_BYTES and moved[link] < LESS * usual:
                yield f"its NVLink {link} moved {moved[link] / 1e9:.2f} GB, its others {usual / 1e9:.2f}"


def _pcie_findings(gpu: GpuObservations, others: Sequence[GpuObservations]) -> Iterator[str]:
    width, lanes = gpu.last.pcie_width, gpu.last.pcie_width_max
    if width and lanes and width < lanes:
        yield f"its PCIe link has {width:.0f} of {lanes:.0f} lanes"
    generation, full = gpu.pcie_generation, gpu.last.pcie_generation_max
    at_full = [other for other in others if other.pcie_generation == other.last.pcie_generation_max is not None]
    if generation and full and generation < full and at_full:
        yield f"its PCIe link ran at generation {generation:.0f} of {full:.0f}"
    for kind, count in sorted(gpu.increase(lambda sample: sample.pcie_errors).items()):
        if kind != "replay" or count >= MIN_REPLAYS:
            yield f"its PCIe link counted {kind.replace('_', ' ')} errors, {_times(count)}"


def _usual_value(values: Sequence[float | None]) -> float | None:
    read_values = [value for value in values if value is not None]
    return statistics.median(read_values) if len(read_values) >= OTHERS else None


_FINDERS = (_error_findings, _clock_findings, _link_findings, _uneven_link_findings, _pcie_findings)
"""Functions that yield phrases about one GPU, the most specific first. The first is used as the cause of a fault."""


OK = "ok"
WORDS = {"read": "read", "write": "write", "nvlink": "NVLink", "atomics": "atomics"}
"""NVML's peer access capabilities, each with its name in sentences."""

Ends = tuple[str, str]


def missing_access(observations: Observations) -> dict[Ends, str]:
    """Return, by pair of GPUs, a phrase about peer access that the pair lacks, but had before or should have here.

    `observations`: the GPUs of the run, in order.
    """
    access_by_pair = {
        ends: access
        for ends in combinations(observations, 2)
        if (access := observations[ends[0]].last.peer_access.get(ends[1]))
    }
    # if GPUs are not observed, the others do not show which peer access the board provides
    whole = all(uuid in observations for gpu in observations.values() for uuid in gpu.last.peer_access)
    complete = access_by_pair if whole else {}
    missing = {}
    for (a, b), access in access_by_pair.items():
        before = observations[a].first.peer_access.get(b, {})
        without = {name: status for name, status in access.items() if status != OK}
        lost = {name: status for name, status in without.items() if before.get(name) == OK}
        unlike = {name: without[name] for name in without.keys() - lost.keys() if _is_usual(name, complete)}
        phrases = [*_list_pairs("have lost", "they had before", lost), *_list_pairs("lack", "other pairs have", unlike)]
        if phrases:
            missing[a, b] = " and ".join(phrases)
    return missing


def _is_usual(name: str, complete: Mapping[Ends, Mapping[str, str]]) -> bool:
    """Return whether at least half of all pairs have this capability, and some GPUs lack it in more pairs than others.

    If every GPU lacks it in the same number of pairs, the board is built so, as a cube mesh is.
    """
    statuses = {ends: access[name] for ends, access in complete.items() if name in access}
    have = sum(status == OK for status in statuses.values())
    without = Counter(gpu for ends, status in statuses.items() for gpu in ends if status != OK)
    gpus = {gpu for ends in statuses for gpu in ends}
    alike = len({without[gpu] for gpu in gpus}) == 1
    return have > 0 and have * 2 >= len(statuses) and not alike


def _list_pairs(verb: str, whose: str, without: Mapping[str, str]) -> Iterator[str]:
    if without:
        names = (f"{words} ({without[name].replace('_', ' ')})" for name, words in WORDS.items() if name in without)
        yield f"{verb} peer access that {whose}: {', '.join(names)}"
