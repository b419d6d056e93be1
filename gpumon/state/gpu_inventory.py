"""Inventory of GPUs: which GPUs are present, and which are expected after restarts and reboots. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gpumon.health.products import Expectation, Neighbours, board_size, expectation
from gpumon.model.error_event import UNNAMED
from gpumon.model.gpu_state import GpuState
from gpumon.model.instant import Now
from gpumon.model.node import Driver
from gpumon.model.records import StoredGpu
from gpumon.model.request import DeviceHolder
from gpumon.model.snapshot import CONTAINER, SANDBOX, DriverStatus, PciBus, Quarantine, SamplerStatus, Snapshot
from gpumon.model.str_enum import StrEnum
from gpumon.model.time_window import NODE
from gpumon.state.gpu_identity import (
    DISPLACED,
    Bus,
    Records,
    add_stored,
    identify,
    identify_from_store,
    unidentified_record,
)
from gpumon.state.gpu_record import fail, read
from gpumon.state.gpu_view import GpuView
from gpumon.state.messages import Acceptance, StoredState

NVIDIA_DRIVERS = frozenset({"", "nvidia", "nouveau"})
"""Drivers of GPUs that belong to this host. A GPU with any other driver is passed through to a virtual machine."""

_EMPTY_BUS = PciBus(functions={})


class Removal(StrEnum):
    """Reason why a GPU is no longer expected."""

    GIVEN = "given"
    """Passed through to a virtual machine: another driver is bound to it."""
    EXCLUDED = "excluded"
    REPLACED = "replaced"
    ACCEPTED = "accepted"


class RemovedGpu(NamedTuple):
    """A GPU that was present and is no longer expected."""

    why: Removal
    bus_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInventory:
    """The GPUs of the node, their driver, the GPUs on the PCI bus, stored GPUs, and how many GPUs are expected."""

    gpus: Records = field(default_factory=dict)
    """Records of the GPUs of the node by bus id, absent GPUs included."""
    bus: PciBus | None = None
    stored: Mapping[str, StoredGpu] = field(default_factory=dict)
    """The GPU that an earlier run of the agent last read at each bus id."""
    learned: int = 0
    """Highest number of GPUs that were present at one time, including those passed through to virtual machines."""
    accepted: bool = False
    """True if the operator accepted the number of GPUs. `learned` then started again at the accepted number."""
    removed: Mapping[str, RemovedGpu] = field(default_factory=dict)
    """GPUs that are no longer expected, by uuid."""
    status: DriverStatus | None = None
    samplers: SamplerStatus = SamplerStatus()
    polled_at: float | None = None
    """Time at which the last Snapshot arrived, as Now.uptime; None before the first."""
    released: frozenset[str] = frozenset()
    """Scopes of the releases in force: bus ids, or NODE for all GPUs."""
    resuming: Mapping[str, float] = field(default_factory=dict)
    """GPUs that have not been read since the end of their release, by bus id (NODE for the driver). The value is the
    time, as Now.uptime, from which the release no longer explains why a GPU is not read.
    """
    release_holders: tuple[DeviceHolder, ...] = ()

    # derived from the above after each message

    fresh: bool = False
    unwatched: Collection[str] = frozenset()
    """Bus ids of the GPUs that are not read because of a release. NODE is among them if no GPU of the node is read."""
    down: str | None = None
    """Reason why no GPU of the node can be read now; None if there is none."""
    views: Mapping[str, GpuView] = field(default_factory=dict)
    states: tuple[GpuState, ...] = ()
    """The GPUs as outputs and checks read them, sorted by index, with a limited number of series."""
    dropped: Mapping[str, float] = field(default_factory=dict)
    """Number of series that `states` lacks because of a limit, by reason."""
    driver: Driver = Driver()
    expectation: Expectation = Expectation()

    @property
    def pci(self) -> PciBus:
        """Return the last reading of the PCI bus; one without GPUs before the first."""
        return self.bus or _EMPTY_BUS

    def unopened(self, uptime: float) -> frozenset[str]:
        """Return the GPUs on the bus that the sampler which polled during their release has not opened.

        It may still poll when the release has ended. No sampler polls during a release of the whole node.
        """
        resuming = {} if NODE in self.resuming else self.resuming
        return frozenset(each for each, until in resuming.items() if until > uptime and each in self.drivers)

    @property
    def drivers(self) -> Bus:
        """Return the bound driver of each GPU by bus id; empty until the bus has been read."""
        return self.pci.functions


def poll(
    inventory: GpuInventory, snapshot: Snapshot, now: Now, boot_id: str, *, own: Collection[str], restored: bool
) -> GpuInventory:
    """Return the inventory after the readings in a snapshot, which need not contain every GPU.

    If it is complete, GPUs that it did not list are marked as missing, unless they are quarantined or released. GPUs
    that were replaced are then removed, if `restored` (the store was read). `boot_id`: the current boot. `own`: uuids
    of the GPUs that the agent's probe uses now.
    """
    records, bus, released = inventory.gpus, inventory.drivers, inventory.released
    away = _passed_through_bus_ids(bus)
    for reading in snapshot.gpus:
        before = records.get(reading.bus_id) or unidentified_record(records, reading.bus_id, bus)
        if reading.uuid is not None and (before.uuid != reading.uuid or before.restored):
            records, before = identify(records, before, reading)
        around = Neighbours(count=max(len(bus) - len(away), len(records)), passed_through=away)
        record = read(before, reading, around, now, boot_id, own=before.uuid in own)
        records = {**records, reading.bus_id: record}
    records = _with_released(records, released, bus)
    if snapshot.complete:
        present = {*snapshot.present, *inventory.samplers.quarantined, *released, *inventory.unopened(now.uptime)}
        records = {
            bus_id: gpu if bus_id in present else fail(gpu, "missing", _location(gpu, inventory), now.wall)
            for bus_id, gpu in records.items()
        }
    records = identify_from_store(records, inventory.stored)
    inventory = replace(inventory, gpus=records, polled_at=now.uptime)
    inventory = _without_unowned(_learn(inventory, snapshot.visible))
    if snapshot.complete and restored:
        inventory = _remove(inventory, _replaced_gpus(inventory), Removal.REPLACED)
    return inventory


def _location(gpu: GpuState, inventory: GpuInventory) -> str:
    if gpu.bus_id.startswith(DISPLACED):
        return f"another GPU is at its last address {gpu.stored.bus_id}" if gpu.stored else "another GPU is there now"
    if inventory.pci.place == SANDBOX:
        return "the driver does not list it, and the PCI bus is not visible here"
    on_bus = gpu.bus_id in inventory.drivers
    return "on the PCI bus, but the driver does not list it" if on_bus else "no longer on the PCI bus"


def _with_released(records: Records, released: Collection[str], bus: Bus) -> Records:
    after = records
    # A GPU that already has a record no longer counts as absent, although it is not read.
    for bus_id in sorted(released):
        before = after.get(bus_id)
        if bus_id in bus and (before is None or before.absent):
            after = {**after, bus_id: replace(before or unidentified_record(after, bus_id, bus), absent=False)}
    return after


def quarantine(inventory: GpuInventory, quarantined: Mapping[str, Quarantine]) -> GpuInventory:
    """Return the inventory with the fault of each quarantined GPU set. No sampler opens these GPUs."""
    records = dict(inventory.gpus)
    for bus_id, entry in quarantined.items():
        before = records.get(bus_id) or unidentified_record(records, bus_id, inventory.drivers)
        records[bus_id] = fail(before, entry.fault, entry.detail, entry.wall)
    return replace(inventory, gpus=identify_from_store(records, inventory.stored))


def read_bus(inventory: GpuInventory, bus: PciBus) -> GpuInventory:
    """Return the inventory after a reading of the PCI bus, without GPUs that are passed through or excluded."""
    return _without_unowned(_learn(replace(inventory, bus=bus), None))


def restore(inventory: GpuInventory, stored: StoredState, boot_id: str) -> GpuInventory:
    """Return the inventory with the stored GPUs that are expected, unless they are passed through or excluded."""
    by_address = {gpu.bus_id: gpu for gpu in stored.gpus}
    # The store does not keep why a GPU is no longer expected.
    taken = {gpu.bus_id for gpu in stored.gpus if gpu.expected}
    removed = {
        gpu.uuid: RemovedGpu(
            Removal.ACCEPTED if stored.accepted and gpu.bus_id not in taken else Removal.REPLACED, gpu.bus_id
        )
        for gpu in stored.gpus
        if not gpu.expected
    }
    records = add_stored(identify_from_store(inventory.gpus, by_address), stored.gpus, boot_id)
    inventory = replace(
        inventory,
        stored=by_address,
        gpus=records,
        accepted=inventory.accepted or stored.accepted,
        removed={**removed, **inventory.removed},
        learned=max(inventory.learned, sum(gpu.expected for gpu in stored.gpus)),
    )
    return _without_unowned(inventory)


def accept(inventory: GpuInventory, acceptance: Acceptance) -> GpuInventory:
    """Return the inventory without the GPUs accepted as gone, and with the accepted numbers of GPUs and lanes."""
    gpus = dict(inventory.gpus)
    for bus_id, gpu in inventory.gpus.items():
        if gpu.uuid in acceptance.lanes and gpu.stored is not None:
            stored = replace(gpu.stored, lanes=acceptance.lanes[gpu.uuid], lanes_accepted=True)
            gpus[bus_id] = replace(gpu, stored=stored)
    inventory = replace(inventory, gpus=gpus)
    leaving = [gpu for gpu in inventory.gpus.values() if gpu.uuid in acceptance.gone]
    inventory = _remove(inventory, leaving, Removal.ACCEPTED)
    if acceptance.count is None:
        return inventory
    return replace(inventory, accepted=True, learned=acceptance.count + count_passed_through(_own_bus(inventory)))


def expect_unnamed(inventory: GpuInventory, bus_ids: Collection[str]) -> GpuInventory:
    """Return the inventory with a record for each GPU in `bus_ids` that is on the bus and has none.

    Stored verdicts name these GPUs by PCI address. With a record they have an index before the first poll.
    """
    if not bus_ids:
        return inventory
    records = _with_released(inventory.gpus, set(bus_ids) - inventory.gpus.keys(), inventory.drivers)
    owned = _owned_records(records, inventory)
    return inventory if owned is inventory.gpus else replace(inventory, gpus=owned)


def gpu_expectation(inventory: GpuInventory, configured: int | None) -> Expectation:
    """Return the expected number of GPUs, and the basis of that number. `configured`: the configured number, if any."""
    away = count_passed_through(_own_bus(inventory)) + _count_excluded_off_bus(inventory)
    own = max(0, inventory.learned - away)
    names = {gpu.identity.get("name") for gpu in inventory.gpus.values()}
    here = {gpu.bus_id for gpu in inventory.gpus.values() if not gpu.absent}
    return expectation(
        configured=configured,
        accepted=inventory.accepted,
        learned=own,
        product=board_size(names.pop(), own) if len(names) == 1 and not away else None,
        on_bus=owned_on_bus(inventory.drivers),
        place=inventory.pci.place,
        unlisted=tuple(
            bus_id
            for bus_id, driver in sorted(inventory.drivers.items())
            if driver in NVIDIA_DRIVERS and bus_id not in here and bus_id not in inventory.pci.excluded
        ),
    )


def count_passed_through(bus: Bus) -> int:
    """Return the number of GPUs on the bus that are passed through to virtual machines."""
    return len(_passed_through_bus_ids(bus))


def owned_on_bus(bus: Bus) -> int:
    """Return the number of GPUs on the bus that belong to this host."""
    return len(bus) - count_passed_through(bus)


def _passed_through_bus_ids(bus: Bus) -> frozenset[str]:
    return frozenset(bus_id for bus_id, driver in bus.items() if driver not in NVIDIA_DRIVERS)


def _own_bus(inventory: GpuInventory) -> Bus:
    """Return the drivers by bus id; an empty dict in a container or sandbox, which may not have all GPUs on the bus."""
    return {} if inventory.pci.place in {CONTAINER, SANDBOX} else inventory.drivers


def _learn(inventory: GpuInventory, visible: int | None) -> GpuInventory:
    """Return the inventory with `learned` raised to the number of GPUs that are present now, if that is higher."""
    bus = _own_bus(inventory)
    here = (visible or 0) + count_passed_through(bus)
    if bus:  # a GPU that was passed through between the driver's count and this reading of the bus counts once
        here = min(here, len(bus))
    learned = max(inventory.learned, here, 0 if inventory.accepted else len(bus))
    return inventory if learned == inventory.learned else replace(inventory, learned=learned)


def _count_excluded_off_bus(inventory: GpuInventory) -> int:
    """Return the number of excluded GPUs that are no longer on the PCI bus. These do not count as missing."""
    excluded = (gpu for gpu in inventory.removed.values() if gpu.why is Removal.EXCLUDED)
    return sum(gpu.bus_id in inventory.pci.excluded and gpu.bus_id not in inventory.drivers for gpu in excluded)


def _replaced_gpus(inventory: GpuInventory) -> Collection[GpuState]:
    """Return the absent GPUs that were replaced by others.

    These are all absent GPUs if the present ones fill all places of the node that are neither passed through nor
    excluded. Else they are only GPUs whose address another GPU uses, at most as many as there are records in excess of
    the places. Return none while the uuid of a GPU has not been read.
    """
    records, excluded = inventory.gpus, sum(bus_id in inventory.drivers for bus_id in inventory.pci.excluded)
    away = count_passed_through(_own_bus(inventory)) + excluded + _count_excluded_off_bus(inventory)
    surplus = len(records) - (inventory.learned - away)
    if surplus <= 0 or any(gpu.uuid.startswith(UNNAMED) for gpu in records.values()):
        return ()
    absent = [gpu for gpu in records.values() if gpu.absent]
    if surplus >= len(absent):
        return absent
    displaced = [gpu for gpu in absent if gpu.bus_id.startswith(DISPLACED)]
    return sorted(displaced, key=lambda gpu: gpu.stored.last_wall if gpu.stored else 0.0)[:surplus]


def _owned_records(records: Records, inventory: GpuInventory) -> Records:
    bus, excluded = inventory.drivers, inventory.pci.excluded
    owned = {
        bus_id: gpu
        for bus_id, gpu in records.items()
        if bus_id not in excluded and bus.get(bus_id, "") in NVIDIA_DRIVERS
    }
    return records if len(owned) == len(records) else owned


def _without_unowned(inventory: GpuInventory) -> GpuInventory:
    """Return the inventory without GPUs that are passed through or that the configuration excludes.

    A GPU that is present again is no longer in `removed`.
    """
    records = inventory.gpus
    left = _owned_records(records, inventory)
    if left is not records:
        leaving = [gpu for bus_id, gpu in records.items() if bus_id not in left]
        given = [gpu for gpu in leaving if gpu.bus_id not in inventory.pci.excluded]
        excluded = [gpu for gpu in leaving if gpu.bus_id in inventory.pci.excluded]
        inventory = _remove(_remove(inventory, given, Removal.GIVEN), excluded, Removal.EXCLUDED)
    back = {gpu.uuid for gpu in inventory.gpus.values()} & inventory.removed.keys()
    if not back:
        return inventory
    return replace(inventory, removed={uuid: gpu for uuid, gpu in inventory.removed.items() if uuid not in back})


def _remove(inventory: GpuInventory, gpus: Iterable[GpuState], why: Removal) -> GpuInventory:
    leaving = {gpu.uuid: gpu for gpu in gpus}
    if not leaving:
        return inventory
    gone = {
        uuid: RemovedGpu(why, gpu.stored.bus_id if gpu.bus_id.startswith(DISPLACED) and gpu.stored else gpu.bus_id)
        for uuid, gpu in leaving.items()
    }
    left = {bus_id: gpu for bus_id, gpu in inventory.gpus.items() if gpu.uuid not in leaving}
    return replace(inventory, gpus=left, removed={**inventory.removed, **gone})
