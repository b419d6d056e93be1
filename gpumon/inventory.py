"""The GPUs the agent knows: found on the bus, opened, faulted, lost, back again. Identity never vanishes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpumon.arrival import Aside
from gpumon.counters import Counts, advance, gained, raw_values, totals
from gpumon.health.products import Expects, Neighbours, expected, expects
from gpumon.snapshot.burst import UNNAMED, Board
from gpumon.snapshot.fabric import Platform
from gpumon.snapshot.gpu import FAULTS, Gpu
from gpumon.snapshot.nvlink import Nvlink, NvlinkPeer
from gpumon.snapshot.reading import rows
from gpumon.snapshot.snapshot import SeenGpu
from gpumon.terms import Moment

_IDENTITY = tuple(name for name, row in rows(Gpu).items() if row.identity)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownGpu:
    """One GPU, with the memory that its counters need. `seen` is its last reading."""

    bus_id: str
    uuid: str
    index: int
    identity: Mapping[str, str] = field(default_factory=dict)
    fault: str | None = None
    detail: str = ""
    since: float | None = None
    """Wall time at which the fault was found."""
    seen: SeenGpu | None = None
    seen_at: float | None = None
    """When it was last read, on the clock of Moment.lived."""
    observed: float = 0.0
    counts: Counts = field(default_factory=dict)
    link_counts: Mapping[str, Counts] = field(default_factory=dict)
    links: Mapping[str, Nvlink] = field(default_factory=dict)
    """As they are exported: the same objects until one of them is read anew and differs."""
    expects: Expects = Expects.UNKNOWN
    """Which of its links should be up."""
    been_up: frozenset[str] = frozenset()
    """Links that have been up since the agent's start."""
    peers: Mapping[str, NvlinkPeer] = field(default_factory=dict)
    platform: Platform | None = None
    """Identity: these stay, whatever becomes of the GPU."""
    recalled: bool = False
    """Its name is that of the board that was last seen at this address, in an earlier life of the agent."""

    @property
    def named(self) -> bool:
        """Whether it has told its own name, and with it its index."""
        return not self.recalled and not self.uuid.startswith(UNNAMED)


Inventory = Mapping[str, KnownGpu]
"""By bus id."""
Bus = Mapping[str, str]
"""Bus id -> driver bound."""


def see(known: Inventory, seen: SeenGpu, bus: Bus, now: Moment) -> Inventory:
    """Take one GPU of a poll into the inventory."""
    before = known.get(seen.bus_id) or stranger(known, seen.bus_id, bus)
    if seen.uuid is not None and (before.uuid != seen.uuid or before.recalled):
        known, before = _name(known, before, seen)
    if seen.gpu is not None:
        after = _read(before, seen, now.lived, _neighbours(known, bus))
    else:
        after = fail(before, seen.fault or "unknown", seen.error, now.wall)
    return {**known, seen.bus_id: after}


def _name(known: Inventory, stand_in: KnownGpu, seen: SeenGpu) -> tuple[Inventory, KnownGpu]:
    """A GPU has told its uuid: it was opened for the first time, or moved here, or took another board's place."""
    others = {bus_id: gpu for bus_id, gpu in known.items() if bus_id != seen.bus_id}
    moved = next((gpu for gpu in others.values() if gpu.uuid == seen.uuid), None)
    if moved is not None and moved.recalled:  # it was not there after all: who sits there has no name again
        others[moved.bus_id] = replace(moved, uuid=UNNAMED + moved.bus_id.lower(), identity={}, recalled=False)
    elif moved is not None:
        del others[moved.bus_id]
        return others, replace(moved, bus_id=seen.bus_id)
    wanted = stand_in.index if seen.index is None else seen.index
    holder = next((gpu for gpu in others.values() if gpu.index == wanted), None)
    if holder is not None and not holder.named:  # only a guess: it gives way
        others[holder.bus_id] = replace(holder, index=_free(others, wanted))
    elif holder is not None:
        wanted = _free(others, wanted)
    return others, KnownGpu(bus_id=seen.bus_id, uuid=seen.uuid or "", index=wanted)


def _free(known: Inventory, index: int) -> int:
    """The first index from this one on that no GPU has."""
    taken = {gpu.index for gpu in known.values()}
    while index in taken:
        index += 1
    return index


def stranger(known: Inventory, bus_id: str, bus: Bus) -> KnownGpu:
    """A GPU of which only the PCI address is known. NVML counts in the order of the bus: its place is its index."""
    places = sorted({one for one, driver in bus.items() if driver == "nvidia"} | {bus_id})
    return KnownGpu(bus_id=bus_id, uuid=UNNAMED + bus_id.lower(), index=_free(known, places.index(bus_id)))


def recall(known: Inventory, boards: Mapping[str, Board]) -> Inventory:
    """Name those that have not told their names by the boards that were last seen at their addresses."""
    taken = {gpu.uuid for gpu in known.values()}
    named = {
        bus_id: replace(
            gpu,
            uuid=board.uuid,
            identity={"name": board.name, "serial": board.serial, **gpu.identity},
            recalled=True,
        )
        for bus_id, gpu in known.items()
        if gpu.uuid.startswith(UNNAMED) and (board := boards.get(bus_id)) is not None and board.uuid not in taken
    }
    return {**known, **named} if named else known


def fail(gpu: KnownGpu, fault: str, detail: str, wall: float) -> KnownGpu:
    """The GPU with this fault; since when, if it is the same as before."""
    since = gpu.since if gpu.fault == fault else wall
    return replace(gpu, fault=fault, detail=detail, since=since)


def leave_aside(known: Inventory, aside: Mapping[str, Aside], bus: Bus) -> Inventory:
    """Mark what no sampler opens."""
    marked = dict(known)
    for bus_id, one in aside.items():
        marked[bus_id] = fail(known.get(bus_id) or stranger(marked, bus_id, bus), one.fault, one.detail, one.wall)
    return marked


def expect(known: Inventory, bus_ids: Collection[str], bus: Bus) -> Inventory:
    """Know what is on the bus and nobody has opened yet, nor will for now."""
    expected = dict(known)
    for bus_id in sorted(bus_ids):
        if bus_id in bus and bus_id not in expected:
            expected[bus_id] = stranger(expected, bus_id, bus)
    return expected


def miss(known: Inventory, present: set[str], bus: Bus, now: Moment) -> Inventory:
    """Mark as missing what should have been in this poll and was not."""
    gone = {bus_id: gpu for bus_id, gpu in known.items() if bus_id not in present}
    words = {True: "on the PCI bus, but the driver does not list it", False: "no longer on the PCI bus"}
    missing = {bus_id: fail(gpu, "missing", words[bus_id in bus], now.wall) for bus_id, gpu in gone.items()}
    return {**known, **missing}


def release(known: Inventory, bus: Bus, excluded: Collection[str]) -> Inventory:
    """Drop what another driver owns now, or the configuration excludes: it is not ours to miss."""
    return {
        bus_id: gpu
        for bus_id, gpu in known.items()
        if bus.get(bus_id, "nvidia") in {"nvidia", ""} and bus_id not in excluded
    }


def _neighbours(known: Inventory, bus: Bus) -> Neighbours:
    given_away = sum(driver not in {"nvidia", ""} for driver in bus.values())
    return Neighbours(count=max(len(bus) - given_away, len(known)), given_away=given_away > 0)


def _read(gpu: KnownGpu, seen: SeenGpu, at: float, around: Neighbours) -> KnownGpu:
    assert seen.gpu is not None  # noqa: S101 - the caller looked
    what = expects(seen.gpu.name, seen.gpu.nvlinks, mig=bool(seen.gpu.mig_mode), around=around)
    if gpu.seen is None or gpu.seen.links != seen.links or gpu.expects is not what:
        gpu = _read_links(replace(gpu, expects=what), seen.links)
    return replace(
        gpu,
        identity={
            **gpu.identity,
            **{name: value for name in _IDENTITY if (value := getattr(seen.gpu, name)) is not None},
        },
        fault=None,
        detail="",
        since=None,
        seen=seen,
        seen_at=at,
        observed=gpu.observed + seen.watched,
        counts=advance(gpu.counts, raw_values(seen.gpu), gained(seen.increments)),
        peers=gpu.peers if not seen.peers or seen.peers == gpu.peers else seen.peers,
        platform=gpu.platform if seen.platform in {None, gpu.platform} else seen.platform,
    )


def _read_links(gpu: KnownGpu, links: Mapping[str, Nvlink]) -> KnownGpu:
    counts = {link: advance(gpu.link_counts.get(link, {}), raw_values(one), {}) for link, one in links.items()}
    been_up = gpu.been_up | {link for link, one in links.items() if one.up}
    wanted = expected(gpu.expects, links, been_up)
    shown = {
        link: replace(one, up=one.up if one.up or link in wanted else None, **totals(one, counts[link], {}))
        for link, one in links.items()
    }
    return replace(gpu, link_counts={**gpu.link_counts, **counts}, links=shown, been_up=been_up)


def readings(
    gpu: KnownGpu, xids: Mapping[str, tuple[float, float]], fault: str | None, *, released: bool = False
) -> Gpu:
    """The GPU as it is exported: everything while it answers, what never vanishes while it does not."""
    own: dict[str, Any] = {
        **gpu.identity,
        "up": None if released and fault is None else float(fault is None),
        "released": float(released),
        "fault": {name: float(name == fault) for name in FAULTS},
        "observed_seconds_total": gpu.observed,
        "xid_errors_total": {xid: count for xid, (count, _) in xids.items()},
        "xid_last_timestamp_seconds": {xid: last for xid, (_, last) in xids.items() if last} or None,
    }
    if released or fault is not None or gpu.seen is None or gpu.seen.gpu is None:
        return Gpu(**own)
    up = [link.up for link in gpu.links.values() if link.up is not None]
    own |= totals(gpu.seen.gpu, gpu.counts, gained(gpu.seen.increments))
    return replace(gpu.seen.gpu, nvlinks_active=float(sum(up)) if up else None, **own)
