"""Identifies GPUs by uuid or, until the uuid has been read, as the GPU stored at the same PCI address. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from gpumon.model.error_event import UNNAMED
from gpumon.model.gpu_state import GpuState
from gpumon.model.records import StoredGpu
from gpumon.model.snapshot import GpuReading

DISPLACED = "taken-"
"""Prefix of the inventory key of a GPU whose PCI address another GPU uses now. The key consists of this prefix and the
GPU's uuid, and takes the place of a bus id.
"""

Records = Mapping[str, GpuState]
"""Records of GPUs by bus id."""
Bus = Mapping[str, str]
"""Name of the bound kernel driver, by bus id of the GPU."""


def unidentified_record(records: Records, bus_id: str, bus: Bus) -> GpuState:
    """Return a new record for a GPU whose uuid has not been read.

    Its index is its position among the GPUs with the driver nvidia on the PCI bus, because NVML numbers GPUs in bus
    order, or the next free index.
    """
    positions = sorted({address for address, driver in bus.items() if driver == "nvidia"} | {bus_id})
    return GpuState(bus_id=bus_id, uuid=UNNAMED + bus_id.lower(), index=_free_index(records, positions.index(bus_id)))


def identify(records: Records, here: GpuState, reading: GpuReading) -> tuple[Records, GpuState]:
    """Return the records of the other GPUs, and the record of the GPU in `reading`.

    `here`: the previous record at the address. Call this function if `here` has another uuid than `reading`, or has the
    uuid only from the store: the GPU was opened for the first time, was moved here, or replaces another GPU.
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
        if not before.absent:  # the GPU at the stored address is another one, without a uuid until it is read
            unnamed = replace(before, uuid=UNNAMED + before.bus_id.lower(), identity={}, restored=False, stored=None)
            others[before.bus_id] = replace(unnamed, index_confirmed=False)
    elif here.uuid == reading.uuid:
        before = here
    others, index = _assign_index(others, before, here.index if reading.index is None else reading.index)
    fresh = GpuState(bus_id=reading.bus_id, uuid=reading.uuid or "", index=index, index_confirmed=True)
    return others, fresh if before is None else replace(fresh, stored=before.stored, identity=before.identity)


def _assign_index(
    others: dict[str, GpuState], before: GpuState | None, nvml_index: int
) -> tuple[dict[str, GpuState], int]:
    """Return the other records and the GPU's index: the GPU's index earlier in this boot, else NVML's.

    If another GPU has this index by assumption only, that GPU gets a free one. If the other GPU's index is confirmed,
    return a free index.
    """
    wanted = before.index if before is not None and before.index_confirmed else nvml_index
    holder = next((gpu for gpu in others.values() if gpu.index == wanted), None)
    if holder is None:
        return others, wanted
    if holder.index_confirmed:
        return others, _free_index(others, wanted)
    return {**others, holder.bus_id: replace(holder, index=_free_index(others, wanted))}, wanted


def _free_index(records: Records, index: int) -> int:
    used = {gpu.index for gpu in records.values()}
    while index in used:
        index += 1
    return index


def identify_from_store(records: Records, stored: Mapping[str, StoredGpu]) -> Records:
    """Return the records after each GPU without a uuid got the uuid that was stored for the GPU at its address.

    `stored`: the stored GPU by bus id. A uuid that another record already has is not assigned.
    """
    taken = {gpu.uuid for gpu in records.values()}
    identified = {
        bus_id: replace(gpu, uuid=row.uuid, identity={**identity(row), **gpu.identity}, restored=True, stored=row)
        for bus_id, gpu in records.items()
        if gpu.uuid.startswith(UNNAMED) and (row := stored.get(bus_id)) is not None and row.uuid not in taken
    }
    return {**records, **identified} if identified else records


def identity(stored: StoredGpu) -> dict[str, str]:
    """Return the identity labels of a stored GPU (name, serial, ..., pci_bus_id) that are not empty."""
    labels = {name: getattr(stored, name) for name in ("name", "serial", "vbios", "inforom", "gsp")}
    return {name: value for name, value in {**labels, "pci_bus_id": stored.bus_id}.items() if value}


def add_stored(records: Records, stored: Collection[StoredGpu], boot_id: str) -> Records:
    """Return the records after stored GPUs were added as absent: those that are expected and have no record.

    If two GPUs are stored at one address, the GPU that was read last gets the address. A stored index is confirmed in
    the same boot only, because the driver may number GPUs differently after a reboot.
    """
    by_uuid = {row.uuid: row for row in stored}
    after = dict(records)
    for bus_id, gpu in records.items():
        if gpu.stored is not None and gpu.uuid in by_uuid:
            first_wall = min(gpu.stored.first_wall, by_uuid[gpu.uuid].first_wall)
            after[bus_id] = replace(gpu, stored=replace(gpu.stored, first_wall=first_wall))
    uuids = {gpu.uuid for gpu in after.values()}
    for row in sorted(stored, key=lambda row: -row.last_wall):
        if row.expected and row.uuid not in uuids:
            key = row.bus_id if row.bus_id not in after else DISPLACED + row.uuid
            index = _free_index(after, row.gpu or 0)
            after[key] = GpuState(
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
