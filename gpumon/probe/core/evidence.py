"""Find what is unusual in the readings of the GPUs and links during a run. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
"""Clock event reasons that hold clocks down, in words."""
ALWAYS_ODD = ("hw_thermal", "sw_thermal", "hw_power_brake", "hw_slowdown")
"""Reported for every GPU; the other reasons only for a GPU that differs from the others."""
MIN_SECONDS = 0.01
"""Min seconds of a clock event: the probe times milliseconds."""
LESS = 0.8
"""Below this share of the others' figure, a GPU differs."""
MIN_BYTES = 1e9
"""Min traffic of a GPU for its distribution to be compared."""
MIN_LINK_BYTES = 1e8
"""Min traffic of one link."""
MIN_REPLAYS = 10.0
OTHERS = 2
"""Min number of GPUs, or links, that another one is compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """Readings of one GPU at one moment. Counters are totals; None is unknown."""

    index: int
    uuid: str
    at: float
    """Wall clock time of the reading; it may be set back."""
    fault: str = ""
    xids: Mapping[str, float] = field(default_factory=dict)
    ecc_errors: float | None = None
    """Uncorrected errors."""
    held_down: Collection[str] = ()
    """Active reasons that hold its clocks down."""
    held_seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds by reason."""
    sm_clock: float | None = None
    """Hertz."""
    links_down: Collection[str] = ()
    link_errors: Mapping[str, float] = field(default_factory=dict)
    """Errors by link and kind, such as `3: replay`."""
    link_speed: float | None = None
    """Speed of its slowest NVLink in bytes a second."""
    link_bytes: float | None = None
    """Traffic over all NVLinks, both ways."""
    each_link_bytes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Traffic by the link's other end and by link number: links to the same end share its traffic."""
    peer_access: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """NVML's peer access status, by UUID of the other GPU and capability."""
    fabric: Collection[str] = ()
    """Unhealthy checks of the fabric."""
    pcie_generation: float | None = None
    pcie_generation_max: float | None = None
    pcie_width: float | None = None
    pcie_width_max: float | None = None
    pcie_errors: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Readings of one GPU from before a run until now."""

    first: Sight
    last: Sight
    looks: int = 1
    held_down: Mapping[str, int] = field(default_factory=dict)
    """Number of readings with this active reason."""
    sm_clock: float | None = None
    """Highest clock: it falls on an idle GPU."""
    pcie_generation: float | None = None
    """Highest generation: it falls on an idle GPU by design."""
    each_link_bytes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """First known values, which come after the run has begun."""

    def counted(self, total: Callable[[Sight], Mapping[str, float]]) -> dict[str, float]:
        """Return how much each total has grown."""
        before = total(self.first)
        grown = {key: value - before.get(key, 0.0) for key, value in total(self.last).items()}
        return {key: more for key, more in grown.items() if more > 0}


AllSeen = Mapping[str, Seen]
"""By UUID."""
NOTHING_SEEN: AllSeen = MappingProxyType({})
"""Without GPUs."""


def see(seen: AllSeen, sights: Sequence[Sight]) -> AllSeen:
    """Return the readings with new ones added. A reading that was added before is ignored."""
    after = dict(seen)
    for sight in sights:
        known = seen.get(sight.uuid)
        if known is None:
            known = Seen(first=sight, last=sight, looks=0)
        elif sight.at == known.last.at:
            continue
        after[sight.uuid] = _seen_again(known, sight)
    return after


def _seen_again(seen: Seen, sight: Sight) -> Seen:
    return replace(
        seen,
        last=sight,
        looks=seen.looks + 1,
        held_down={**seen.held_down, **{one: seen.held_down.get(one, 0) + 1 for one in sight.held_down}},
        sm_clock=_highest(seen.sm_clock, sight.sm_clock),
        each_link_bytes=seen.each_link_bytes or sight.each_link_bytes,
        pcie_generation=_highest(seen.pcie_generation, sight.pcie_generation),
    )


def _highest(*values: float | None) -> float | None:
    return max((value for value in values if value is not None), default=None)


# Findings


def findings(seen: AllSeen) -> dict[str, tuple[str, ...]]:
    """Return what is unusual about each GPU of the run, by UUID, in words that follow its name and a colon."""
    found = {}
    for uuid, one in seen.items():
        others = [other for key, other in seen.items() if key != uuid]
        words = tuple(word for find in _FINDERS for word in find(one, others))
        if words:
            found[uuid] = words
    return found


def finding_sentences(seen: AllSeen) -> tuple[str, ...]:
    """Return all findings as sentences."""
    found = findings(seen)
    return tuple(f"{name(uuid, seen)}: {word}." for uuid, words in found.items() for word in words)


def name(uuid: str, seen: AllSeen) -> str:
    """Return the name of a GPU, with its index if that is known."""
    return f"GPU {seen[uuid].last.index} ({uuid})" if uuid in seen else f"GPU {uuid}"


def _faulty(one: Seen, _others: Sequence[Seen]) -> Iterator[str]:
    if one.last.fault:
        yield f"it does not answer ({one.last.fault})"


def _erring(one: Seen, _others: Sequence[Seen]) -> Iterator[str]:
    for xid, count in sorted(one.counted(lambda sight: sight.xids).items(), key=lambda item: int(item[0])):
        yield f"Xid {xid} occurred {_times(count)}"
    before, after = one.first.ecc_errors, one.last.ecc_errors
    if before is not None and after is not None and after > before:
        yield f"its memory had an uncorrected ECC error {_times(after - before)}"


def _times(count: float) -> str:
    return "once" if count == 1 else f"{count:.0f} times"


def _held_down(one: Seen, others: Sequence[Seen]) -> Iterator[str]:
    for reason, words in HELD_DOWN.items():
        ordinary = len(others) < OTHERS or sum(_was_held(other, reason) for other in others) * 2 >= len(others)
        if _was_held(one, reason) and (reason in ALWAYS_ODD or not ordinary):
            yield f"its clocks were held down by {words}"


def _was_held(one: Seen, reason: str) -> bool:
    seconds = one.counted(lambda sight: sight.held_seconds).get(reason, 0.0)
    return seconds >= MIN_SECONDS or bool(one.held_down.get(reason))


def _slow_clock(one: Seen, others: Sequence[Seen]) -> Iterator[str]:
    usual = _usual([other.sm_clock for other in others])
    if usual is not None and one.sm_clock is not None and one.sm_clock < LESS * usual:
        yield f"its SM clock reached {one.sm_clock / 1e9:.2f} GHz, that of the others {usual / 1e9:.2f}"


def _links(one: Seen, others: Sequence[Seen]) -> Iterator[str]:
    for link in sorted(one.last.links_down, key=int):
        yield f"its NVLink {link} is down"
    for kind, count in sorted(one.counted(lambda sight: sight.link_errors).items()):
        yield f"its NVLink {kind}, {_times(count)}"
    usual = _usual([other.last.link_speed for other in others])
    if usual is not None and one.last.link_speed is not None and one.last.link_speed < LESS * usual:
        speed = one.last.link_speed
        yield f"an NVLink of it runs at {speed / 1e9:.1f} GB/s, those of the others at {usual / 1e9:.1f}"
    for check in sorted(one.last.fabric):
        yield f"its fabric reports {check.replace('_', ' ')}"


def _idle_links(one: Seen, others: Sequence[Seen]) -> Iterator[str]:
    """Compare NVLink traffic: in each collective all ranks move the same amount."""
    moved, usual = _moved(one), _usual([_moved(other) for other in others])
    if moved is not None and usual is not None and usual > MIN_BYTES and moved < LESS * usual:
        yield f"it moved {moved / 1e9:.1f} GB over its NVLinks, the others {usual / 1e9:.1f}"


def _moved(one: Seen) -> float | None:
    first, last = one.first.link_bytes, one.last.link_bytes
    return None if first is None or last is None or last < first else last - first


def _lame_links(one: Seen, _others: Sequence[Seen]) -> Iterator[str]:
    for place, totals in one.last.each_link_bytes.items():
        before = one.each_link_bytes.get(place, {})
        up = before.keys() - set(one.last.links_down)
        moved = {link: total - before[link] for link, total in totals.items() if link in up and total >= before[link]}
        for link in sorted(moved, key=int):
            usual = _usual([other for number, other in moved.items() if number != link])
            if usual is not None and usual > MIN_LINK_BYTES and moved[link] < LESS * usual:
                yield f"its NVLink {link} moved {moved[link] / 1e9:.2f} GB, its others {usual / 1e9:.2f}"


def _pcie(one: Seen, others: Sequence[Seen]) -> Iterator[str]:
    width, lanes = one.last.pcie_width, one.last.pcie_width_max
    if width and lanes and width < lanes:
        yield f"its PCIe link has {width:.0f} of {lanes:.0f} lanes"
    generation, most = one.pcie_generation, one.last.pcie_generation_max
    if generation and most and generation < most and any(_at_full_generation(other) for other in others):
        yield f"its PCIe link ran at generation {generation:.0f} of {most:.0f}"
    for kind, count in sorted(one.counted(lambda sight: sight.pcie_errors).items()):
        if kind != "replay" or count >= MIN_REPLAYS:
            yield f"its PCIe link counted {kind.replace('_', ' ')} errors, {_times(count)}"


def _at_full_generation(one: Seen) -> bool:
    return one.pcie_generation is not None and one.pcie_generation == one.last.pcie_generation_max


def _usual(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if len(known) >= OTHERS else None


_FINDERS = (_faulty, _erring, _held_down, _slow_clock, _links, _idle_links, _lame_links, _pcie)
"""The most specific finding first."""
