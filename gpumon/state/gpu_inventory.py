"""The GPUs the agent knows, together: found on the bus, named, numbered, in each other's place, missed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from gpumon.health.products import Neighbours
from gpumon.model.error_event import UNNAMED
from gpumon.model.now import Now
from gpumon.model.snapshot import GpuReading
from gpumon.model.stored_gpu import StoredGpu
from gpumon.state.gpu_record import GpuRecord, fail, read
from gpumon.state.messages import Quarantine

OURS = frozenset({"", "nvidia", "nouveau"})
"""Drivers of GPUs that are, or should be, NVIDIA's driver's: any other one gives the GPU to a virtual machine."""
TAKEN = "taken-"
"""Begins the stand-in for the bus id of a GPU at whose address there is another one now; its uuid follows."""


Inventory = Mapping[str, GpuRecord]
"""By bus id."""
Bus = Mapping[str, str]
"""Bus id -> driver bound."""


def see(
    known: Inventory, seen: GpuReading, bus: Bus, now: Now, boot_id: str = "", *, own: Collection[str] = ()
) -> Inventory:
    """Take one GPU of a poll into the inventory. `own`: UUIDs of those that the probe loads."""
    before = known.get(seen.bus_id) or stranger(known, seen.bus_id, bus)
    if seen.uuid is not None and (before.uuid != seen.uuid or before.recalled):
        known, before = _name(known, before, seen)
    if before.nvml_index != seen.index:
        before = replace(before, nvml_index=seen.index)
    return {**known, seen.bus_id: read(before, seen, _neighbours(known, bus), now, boot_id, own=before.uuid in own)}


def _name(known: Inventory, stand_in: GpuRecord, seen: GpuReading) -> tuple[Inventory, GpuRecord]:
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
    fresh = GpuRecord(bus_id=seen.bus_id, uuid=seen.uuid or "", index=index, numbered=True)
    return others, fresh if before is None else replace(fresh, board=before.board, identity=before.identity)


def _numbered(others: dict[str, GpuRecord], before: GpuRecord | None, told: int) -> tuple[dict[str, GpuRecord], int]:
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


def stranger(known: Inventory, bus_id: str, bus: Bus) -> GpuRecord:
    """A GPU of which only the PCI address is known. NVML counts in the order of the bus: its place is its index."""
    places = sorted({one for one, driver in bus.items() if driver == "nvidia"} | {bus_id})
    return GpuRecord(bus_id=bus_id, uuid=UNNAMED + bus_id.lower(), index=_free(known, places.index(bus_id)))


def recall(known: Inventory, boards: Mapping[str, StoredGpu]) -> Inventory:
    """Name those that have not told their names by the boards that were last seen at their addresses."""
    taken = {gpu.uuid for gpu in known.values()}
    named = {
        bus_id: replace(gpu, uuid=board.uuid, identity={**identity(board), **gpu.identity}, recalled=True, board=board)
        for bus_id, gpu in known.items()
        if gpu.uuid.startswith(UNNAMED) and (board := boards.get(bus_id)) is not None and board.uuid not in taken
    }
    return {**known, **named} if named else known


def identity(board: StoredGpu) -> dict[str, str]:
    """What is shown of it before it has told its name."""
    known = {name: getattr(board, name) for name in ("name", "serial", "vbios", "inforom", "gsp")}
    return {name: value for name, value in {**known, "pci_bus_id": board.bus_id}.items() if value}


def remember(known: Inventory, boards: Collection[StoredGpu], boot_id: str) -> Inventory:
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
            after[key] = GpuRecord(
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


def _merged(gpu: GpuRecord, board: StoredGpu | None) -> GpuRecord:
    """The store was late: it knows when the GPU was seen first."""
    if board is None or gpu.board is None:
        return gpu
    return replace(gpu, board=replace(gpu.board, first_wall=min(gpu.board.first_wall, board.first_wall)))


def replaced(known: Inventory, places: int) -> Collection[GpuRecord]:
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


def leave_aside(known: Inventory, aside: Mapping[str, Quarantine], bus: Bus) -> Inventory:
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


def miss(known: Inventory, present: set[str], bus: Bus, now: Now) -> Inventory:
    """Mark as missing what should have been in this poll and was not."""
    gone = {bus_id: gpu for bus_id, gpu in known.items() if bus_id not in present}
    missing = {bus_id: fail(gpu, "missing", _whereabouts(gpu, bus), now.wall) for bus_id, gpu in gone.items()}
    return {**known, **missing}


def _whereabouts(gpu: GpuRecord, bus: Bus) -> str:
    if gpu.bus_id.startswith(TAKEN):
        return f"another GPU is at {gpu.board.bus_id}, where it was last seen" if gpu.board else "another is there now"
    return "on the PCI bus, but the driver does not list it" if gpu.bus_id in bus else "no longer on the PCI bus"


def release(known: Inventory, bus: Bus, excluded: Collection[str]) -> Inventory:
    """Drop what another driver owns now, or the configuration excludes: it is not ours to miss."""
    return {bus_id: gpu for bus_id, gpu in known.items() if bus.get(bus_id, "") in OURS and bus_id not in excluded}


def given_away(bus: Bus) -> int:
    """GPUs on the bus that belong to virtual machines."""
    return len(_given(bus))


def _given(bus: Bus) -> frozenset[str]:
    return frozenset(bus_id for bus_id, driver in bus.items() if driver not in OURS)


def _neighbours(known: Inventory, bus: Bus) -> Neighbours:
    given = _given(bus)
    return Neighbours(count=max(len(bus) - len(given), len(known)), given_away=given)
