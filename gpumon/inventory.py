"""The GPUs the agent knows: found on the bus, opened, faulted, lost, back again. Identity never vanishes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpumon.arrival import Aside
from gpumon.counters import RESET_SHARE, Count, Counts, advance, began_anew, gained, raw_values, totals
from gpumon.health.products import Expects, Neighbours, expected, expects
from gpumon.moment import Moment
from gpumon.snapshot.burst import UNNAMED, Board
from gpumon.snapshot.fabric import Platform
from gpumon.snapshot.gpu import FAULTS, Gpu
from gpumon.snapshot.nvlink import Nvlink, NvlinkPeer
from gpumon.snapshot.reading import rows
from gpumon.snapshot.snapshot import SeenGpu

OURS = frozenset({"", "nvidia", "nouveau"})
"""Drivers of GPUs that are, or should be, NVIDIA's driver's: any other one gives the GPU to a virtual machine."""
TAKEN = "taken-"
"""Begins the stand-in for the bus id of a GPU at whose address there is another one now; its uuid follows."""
AWAY_SECONDS = 10.0
"""After so long without a reading a GPU may have been reset in between."""
_VOLATILE = frozenset({"ecc_errors_total", "pcie_replays_total"})
"""What the driver counts from the moment at which it took the GPU up."""
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
    begun_at: float | None = None
    """Boot clock at which its counters were last seen to have begun anew."""
    recalled: bool = False
    """It has not told its name in this life of the agent: it is that of the board that was last seen here."""
    numbered: bool = False
    """Its index is that of this boot, and no guess."""
    absent: bool = False
    """Nobody has seen anything of it since the agent's start, or in the last whole poll."""
    board: Board | None = None
    """What the store is to know of it; None until it has told its name."""


Inventory = Mapping[str, KnownGpu]
"""By bus id."""
Bus = Mapping[str, str]
"""Bus id -> driver bound."""


def see(known: Inventory, seen: SeenGpu, bus: Bus, now: Moment, boot_id: str = "") -> Inventory:
    """Take one GPU of a poll into the inventory."""
    before = known.get(seen.bus_id) or stranger(known, seen.bus_id, bus)
    if seen.uuid is not None and (before.uuid != seen.uuid or before.recalled):
        known, before = _name(known, before, seen)
    if seen.gpu is not None:
        after = _read(before, seen, now, _neighbours(known, bus))
        after = _on_record(after, before, seen.gpu, now, boot_id)
    else:
        after = fail(before, seen.fault or "unknown", seen.error, now.wall)
    return {**known, seen.bus_id: after}


def _name(known: Inventory, stand_in: KnownGpu, seen: SeenGpu) -> tuple[Inventory, KnownGpu]:
    """A GPU has told its uuid: it was opened for the first time, or moved here, or took another board's place."""
    others = {bus_id: gpu for bus_id, gpu in known.items() if bus_id != seen.bus_id}
    if stand_in.uuid != seen.uuid and not stand_in.uuid.startswith(UNNAMED):
        key = TAKEN + stand_in.uuid
        others[key] = replace(stand_in, bus_id=key, seen=None, seen_at=None, absent=True)
    before = next((gpu for gpu in others.values() if gpu.uuid == seen.uuid), None)
    if before is not None:
        del others[before.bus_id]
        if not before.recalled:
            return others, replace(before, bus_id=seen.bus_id, absent=False)
        if not before.absent:  # it was not there after all: who sits there has no name again
            unnamed = replace(before, uuid=UNNAMED + before.bus_id.lower(), identity={}, recalled=False, board=None)
            others[before.bus_id] = replace(unnamed, numbered=False)
    elif stand_in.uuid == seen.uuid:
        before = stand_in
    others, index = _numbered(others, before, stand_in.index if seen.index is None else seen.index)
    fresh = KnownGpu(bus_id=seen.bus_id, uuid=seen.uuid or "", index=index, numbered=True)
    return others, fresh if before is None else replace(fresh, board=before.board, identity=before.identity)


def _numbered(others: dict[str, KnownGpu], before: KnownGpu | None, told: int) -> tuple[dict[str, KnownGpu], int]:
    """Its index: that which it had in this boot, else what the driver says. Who only guessed its own gives way."""
    wanted = before.index if before is not None and before.numbered else told
    holder = next((gpu for gpu in others.values() if gpu.index == wanted), None)
    if holder is None:
        return others, wanted
    if holder.numbered:
        return others, _free(others, wanted)
    return {**others, holder.bus_id: replace(holder, index=_free(others, wanted))}, wanted


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
        bus_id: replace(gpu, uuid=board.uuid, identity={**identity(board), **gpu.identity}, recalled=True, board=board)
        for bus_id, gpu in known.items()
        if gpu.uuid.startswith(UNNAMED) and (board := boards.get(bus_id)) is not None and board.uuid not in taken
    }
    return {**known, **named} if named else known


def identity(board: Board) -> dict[str, str]:
    """What is shown of it before it has told its name."""
    known = {name: getattr(board, name) for name in ("name", "serial", "vbios", "inforom", "gsp")}
    return {name: value for name, value in {**known, "pci_bus_id": board.bus_id}.items() if value}


def remember(known: Inventory, boards: Collection[Board], boot_id: str) -> Inventory:
    """With every board that is expected and that nobody has seen yet. Of two at one address the one seen last is there.

    An index counts as long as the host was not rebooted since: then the driver may count otherwise.
    """
    mine = {board.uuid: board for board in boards}
    after = {bus_id: _merged(gpu, mine.get(gpu.uuid)) for bus_id, gpu in known.items()}
    here = {gpu.uuid for gpu in after.values()}
    for board in sorted(boards, key=lambda board: -board.last_wall):
        if board.expected and board.uuid not in here:
            key = board.bus_id if board.bus_id not in after else TAKEN + board.uuid
            index = _free(after, board.gpu or 0)
            after[key] = KnownGpu(
                bus_id=key,
                uuid=board.uuid,
                index=index,
                identity=identity(board),
                recalled=True,
                numbered=board.boot_id == boot_id and index == board.gpu,
                absent=True,
                board=board,
            )
    return after


def _merged(gpu: KnownGpu, board: Board | None) -> KnownGpu:
    """The store was late: it knows when the GPU was seen first."""
    if board is None or gpu.board is None:
        return gpu
    return replace(gpu, board=replace(gpu.board, first_wall=min(gpu.board.first_wall, board.first_wall)))


def replaced(known: Inventory, places: int) -> Collection[KnownGpu]:
    """Absent boards in whose stead others are here: with as many as should be all, else those whose place is taken.

    While a GPU has not told its name nobody knows.
    """
    absent = [gpu for gpu in known.values() if gpu.absent]
    surplus = len(known) - places
    if surplus <= 0 or any(gpu.uuid.startswith(UNNAMED) for gpu in known.values()):
        return ()
    if surplus >= len(absent):
        return absent
    taken = [gpu for gpu in absent if gpu.bus_id.startswith(TAKEN)]
    return sorted(taken, key=lambda gpu: gpu.board.last_wall if gpu.board else 0.0)[:surplus]


def fail(gpu: KnownGpu, fault: str, detail: str, wall: float) -> KnownGpu:
    """The GPU with this fault; since when, if it is the same as before."""
    since = gpu.since if gpu.fault == fault else wall
    return replace(gpu, fault=fault, detail=detail, since=since, absent=fault == "missing")


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
        if bus_id in bus:
            expected[bus_id] = replace(expected.get(bus_id) or stranger(expected, bus_id, bus), absent=False)
    return expected


def miss(known: Inventory, present: set[str], bus: Bus, now: Moment) -> Inventory:
    """Mark as missing what should have been in this poll and was not."""
    gone = {bus_id: gpu for bus_id, gpu in known.items() if bus_id not in present}
    missing = {bus_id: fail(gpu, "missing", _whereabouts(gpu, bus), now.wall) for bus_id, gpu in gone.items()}
    return {**known, **missing}


def _whereabouts(gpu: KnownGpu, bus: Bus) -> str:
    if gpu.bus_id.startswith(TAKEN):
        return f"another GPU is at {gpu.board.bus_id}, where it was last seen" if gpu.board else "another is there now"
    return "on the PCI bus, but the driver does not list it" if gpu.bus_id in bus else "no longer on the PCI bus"


def release(known: Inventory, bus: Bus, excluded: Collection[str]) -> Inventory:
    """Drop what another driver owns now, or the configuration excludes: it is not ours to miss."""
    return {bus_id: gpu for bus_id, gpu in known.items() if bus.get(bus_id, "") in OURS and bus_id not in excluded}


def given_away(bus: Bus) -> int:
    """GPUs on the bus that belong to virtual machines."""
    return sum(driver not in OURS for driver in bus.values())


def _neighbours(known: Inventory, bus: Bus) -> Neighbours:
    given = given_away(bus)
    return Neighbours(count=max(len(bus) - given, len(known)), given_away=given > 0)


def _read(gpu: KnownGpu, seen: SeenGpu, now: Moment, around: Neighbours) -> KnownGpu:
    assert seen.gpu is not None  # noqa: S101 - the caller looked
    what = expects(seen.gpu.name, seen.gpu.nvlinks, mig=bool(seen.gpu.mig_mode), around=around)
    if gpu.seen is None or gpu.seen.links != seen.links or gpu.expects is not what:
        gpu = _read_links(replace(gpu, expects=what), seen.links)
    counts = advance(gpu.counts, raw_values(seen.gpu), gained(seen.increments))
    return replace(
        gpu,
        identity={
            **gpu.identity,
            **{name: value for name in _IDENTITY if (value := getattr(seen.gpu, name)) is not None},
        },
        fault=None,
        detail="",
        since=None,
        absent=False,
        seen=seen,
        seen_at=now.lived,
        observed=gpu.observed + seen.watched,
        counts=counts,
        begun_at=now.at if _began_anew(gpu, counts, seen.gpu, now) else gpu.begun_at,
        peers=gpu.peers if not seen.peers or seen.peers == gpu.peers else seen.peers,
        platform=gpu.platform if seen.platform in {None, gpu.platform} else seen.platform,
    )


def _on_record(gpu: KnownGpu, before: KnownGpu, read: Gpu, now: Moment, boot_id: str) -> KnownGpu:
    """With what the store is to know; while the agent was away, the GPU may have been reset."""
    stored = before.board
    energy = read.energy_joules_total
    board = Board(
        uuid=gpu.uuid,
        bus_id=gpu.bus_id,
        serial=gpu.identity.get("serial", ""),
        name=gpu.identity.get("name", ""),
        vbios=gpu.identity.get("vbios", ""),
        inforom=gpu.identity.get("inforom", ""),
        gsp=gpu.identity.get("gsp", ""),
        first_wall=now.wall if stored is None else stored.first_wall,
        last_wall=now.wall,
        gpu=gpu.index,
        boot_id=boot_id,
        nvlinks=int(read.nvlinks) if read.nvlinks is not None else stored.nvlinks if stored else None,
        energy=energy if energy is not None else stored.energy if stored else None,
    )
    kept_open = read.persistence_mode != 0  # else it begins anew whenever nobody has it open
    first = before.seen is None and stored is not None and stored.boot_id == boot_id and kept_open
    reset = first and began_anew(Count(0.0, stored.energy if stored else None), Count(0.0, energy))
    return replace(gpu, board=board, begun_at=now.at if reset else gpu.begun_at)


def _began_anew(gpu: KnownGpu, counts: Counts, read: Gpu, now: Moment) -> bool:
    """Energy is counted from the moment at which the driver took the GPU up, and grows on the idlest GPU.

    Where it is not counted, errors that fell while nobody could read the GPU are the proof.
    """
    was, energy = (one.get("energy_joules_total", {}).get("") for one in (gpu.counts, counts))
    if was is not None and energy is not None:
        return began_anew(was, energy)
    away = gpu.fault is not None or (gpu.seen_at is not None and now.lived - gpu.seen_at > AWAY_SECONDS)
    return away and any(
        raw < RESET_SHARE * (known.raw or 0.0)
        for name, labelled in raw_values(read).items()
        if name in _VOLATILE
        for label, raw in labelled.items()
        if (known := gpu.counts.get(name, {}).get(label)) is not None
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
