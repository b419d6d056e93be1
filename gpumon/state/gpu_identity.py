"""Which GPU is which: by uuid, by PCI address before the uuid has been read, and by what the store has. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from gpumon.model.error_event import UNNAMED
from gpumon.model.snapshot import GpuReading
from gpumon.model.stored_gpu import StoredGpu
from gpumon.state.gpu_record import GpuRecord

DISPLACED = "taken-"
"""Prefix of the key of a GPU whose PCI address is now used by another GPU; its uuid follows."""

Records = Mapping[str, GpuRecord]
"""By bus id."""
Bus = Mapping[str, str]
"""Bus id -> driver bound."""


def unidentified(records: Records, bus_id: str, bus: Bus) -> GpuRecord:
    """Return a record for a GPU of which only the PCI address is known.

    NVML numbers GPUs in the order of the bus, so the position on the bus is used as index.
    """
    positions = sorted({address for address, driver in bus.items() if driver == "nvidia"} | {bus_id})
    return GpuRecord(bus_id=bus_id, uuid=UNNAMED + bus_id.lower(), index=_free_index(records, positions.index(bus_id)))


def identify(records: Records, here: GpuRecord, reading: GpuReading) -> tuple[Records, GpuRecord]:
    """Return the other records and the record of a GPU whose uuid has been read for the first time at this address.

    The GPU was opened for the first time, was moved here, or replaces the GPU that was here before.
    """
    others = {bus_id: gpu for bus_id, gpu in records.items() if bus_id != reading.bus_id}
    if here.uuid != reading.uuid and not here.uuid.startswith(UNNAMED):
        key = DISPLACED + here.uuid
        others[key] = replace(here, bus_id=key, reading=None, read_at=None, absent=True)
    before = next((gpu for gpu in others.values() if gpu.uuid == reading.uuid), None)
    if before is not None:
        del others[before.bus_id]
        if not before.restored:
            return others, replace(before, bus_id=reading.bus_id, absent=False)
        if not before.absent:  # the store's assumption was wrong: the GPU at that address is unidentified again
            unnamed = replace(before, uuid=UNNAMED + before.bus_id.lower(), identity={}, restored=False, stored=None)
            others[before.bus_id] = replace(unnamed, index_confirmed=False)
    elif here.uuid == reading.uuid:
        before = here
    others, index = _assign_index(others, before, here.index if reading.index is None else reading.index)
    fresh = GpuRecord(bus_id=reading.bus_id, uuid=reading.uuid or "", index=index, index_confirmed=True)
    return others, fresh if before is None else replace(fresh, stored=before.stored, identity=before.identity)


def _assign_index(
    others: dict[str, GpuRecord], before: GpuRecord | None, nvml_index: int
) -> tuple[dict[str, GpuRecord], int]:
    """Return the GPU's index: the one that it had in this boot, else NVML's.

    Another GPU with an assumed index gets a new one.
    """
    wanted = before.index if before is not None and before.index_confirmed else nvml_index
    holder = next((gpu for gpu in others.values() if gpu.index == wanted), None)
    if holder is None:
        return others, wanted
    if holder.index_confirmed:
        return others, _free_index(others, wanted)
    return {**others, holder.bus_id: replace(holder, index=_free_index(others, wanted))}, wanted


def _free_index(records: Records, index: int) -> int:
    """Return the first unused index from this one on."""
    used = {gpu.index for gpu in records.values()}
    while index in used:
        index += 1
    return index


def identify_from_store(records: Records, stored: Mapping[str, StoredGpu]) -> Records:
    """Identify GPUs without a uuid by the stored GPU that was last at their address. `stored` is by bus id."""
    taken = {gpu.uuid for gpu in records.values()}
    identified = {
        bus_id: replace(gpu, uuid=row.uuid, identity={**identity(row), **gpu.identity}, restored=True, stored=row)
        for bus_id, gpu in records.items()
        if gpu.uuid.startswith(UNNAMED) and (row := stored.get(bus_id)) is not None and row.uuid not in taken
    }
    return {**records, **identified} if identified else records


def identity(stored: StoredGpu) -> dict[str, str]:
    """Return the identity labels of a stored GPU."""
    labels = {name: getattr(stored, name) for name in ("name", "serial", "vbios", "inforom", "gsp")}
    return {name: value for name, value in {**labels, "pci_bus_id": stored.bus_id}.items() if value}


def add_stored(records: Records, stored: Collection[StoredGpu], boot_id: str) -> Records:
    """Add every stored GPU that is expected and has not been read yet, as absent.

    If two were stored at one address, the one read last keeps it. A stored index counts in the same boot only, because
    the driver may number GPUs differently after a reboot.
    """
    by_uuid = {row.uuid: row for row in stored}
    after = {bus_id: _with_first_time(gpu, by_uuid.get(gpu.uuid)) for bus_id, gpu in records.items()}
    uuids = {gpu.uuid for gpu in after.values()}
    for row in sorted(stored, key=lambda row: -row.last_wall):
        if row.expected and row.uuid not in uuids:
            key = row.bus_id if row.bus_id not in after else DISPLACED + row.uuid
            index = _free_index(after, row.gpu or 0)
            after[key] = GpuRecord(
                bus_id=key,
                uuid=row.uuid,
                index=index,
                identity=identity(row),
                restored=True,
                index_confirmed=row.boot_id == boot_id and index == row.gpu,
                absent=True,
                stored=row,
            )
    return after


def _with_first_time(gpu: GpuRecord, stored: StoredGpu | None) -> GpuRecord:
    """Set the time of the first reading from the store, if the store was read after the GPU."""
    if stored is None or gpu.stored is None:
        return gpu
    return replace(gpu, stored=replace(gpu.stored, first_wall=min(gpu.stored.first_wall, stored.first_wall)))
