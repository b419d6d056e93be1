"""Polls the node: opens GPUs one by one, reads the tiers that are due, and makes the Snapshot."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from gpumon.nvml.events import Events
from gpumon.nvml.field_ids import field_ids
from gpumon.nvml.gpu import GpuFaultError, GpuReader
from gpumon.nvml.library import (
    GONE,
    GPU_IS_LOST,
    GPU_NOT_FOUND,
    NO_PERMISSION,
    NOT_FOUND,
    OPERATING_SYSTEM,
    RESET_REQUIRED,
    Library,
    NvmlError,
)
from gpumon.snapshot.call_page import boot_clock
from gpumon.snapshot.gpu import Gpu
from gpumon.snapshot.reading import FAST, ONCE, RARE, SLOW, Tier
from gpumon.snapshot.snapshot import DriverStatus, SeenGpu, Snapshot

REOPEN_SECONDS = 5.0
"""How long a GPU that could not be opened or read is left in peace."""

ALL_TIERS = (ONCE, RARE, SLOW, FAST)
"""What is read of a GPU that has just been opened. Links need to know how many there are: rare before slow."""

OPEN_FAULTS = {
    GPU_IS_LOST: "lost",
    RESET_REQUIRED: "reset_required",
    NO_PERMISSION: "no_permission",
    OPERATING_SYSTEM: "no_permission",  # a cgroup that does not let us near the device node
}


def start(library: Library) -> DriverStatus:
    """Initialise NVML and ask what it is. Raises NvmlError."""
    library.call("nvmlInit")
    return DriverStatus(
        up=True,
        driver=_optional(library, "nvmlSystemGetDriverVersion"),
        nvml=_optional(library, "nvmlSystemGetNVMLVersion"),
        cuda=_cuda(library),
    )


class _Slot:
    """One PCI address: its reader while it answers, its fault while it does not."""

    def __init__(self, bus_id: str) -> None:
        self.bus_id = bus_id
        self.reader: GpuReader | None = None
        self.uuid: str | None = None
        self.index: int | None = None
        self.fault: str | None = None
        self.error = ""
        self.visible = True
        self.retry_at = 0.0
        self.read_at: float | None = None


class NodePoll:
    """One initialisation of NVML: its handles die with it.

    `leave_aside`: bus ids that are never opened. `unwanted`: uuids that are excluded, and may be known only then.
    """

    def __init__(
        self,
        library: Library,
        driver: str,
        *,
        bus: Callable[[], Mapping[str, str]],
        leave_aside: Collection[str],
        unwanted: Collection[str] = (),
        interval: float,
    ) -> None:
        self._library = library
        self._field_ids = field_ids(driver)
        self._bus = bus
        self._leave_aside = leave_aside
        self._unwanted = unwanted
        self._slots: dict[str, _Slot] = {}
        self._due: dict[Tier, float] = dict.fromkeys((RARE, SLOW, FAST), 0.0)
        self._interval = interval
        self._gap = max(3 * interval, 10.0)
        self.events = Events(library)

    def poll(self) -> Snapshot:
        """Read what is due. Raises NvmlError only when the driver itself is gone."""
        tiers = self._tiers_due()
        if RARE in tiers or SLOW in tiers or not self._slots:
            self._enumerate()
        durations: dict[Tier, float] = dict.fromkeys(tiers, 0.0)
        errors: Counter[str] = Counter()
        denied: set[str] = set()
        visible = _count(self._library)
        gpus = [self._gpu(slot, durations, errors, denied) for slot in self._slots.values()]
        self.events.prepare()
        return Snapshot(
            ended_at=boot_clock(),
            wall=time.time(),
            durations={tier.name.lower(): seconds for tier, seconds in durations.items()},
            gpus=tuple(gpu for gpu in gpus if gpu is not None),
            visible=visible,
            errors=dict(errors),
            denied=tuple(sorted(denied)),
        )

    def _tiers_due(self) -> Sequence[Tier]:
        now = boot_clock()
        due = [tier for tier, at in self._due.items() if tier is FAST or at <= now]
        for tier in due:
            self._due[tier] = now + tier.value
        return due

    def _enumerate(self) -> None:
        """Look at the PCI bus: a GPU bound to another driver, excluded or left aside is never opened."""
        bound = [bus_id for bus_id, driver in self._bus().items() if driver == "nvidia"]
        wanted = [bus_id for bus_id in sorted(bound) if bus_id not in self._leave_aside]
        for bus_id in set(self._slots) - set(wanted):
            self.events.forget(bus_id)
        self._slots = {bus_id: self._slots.get(bus_id) or _Slot(bus_id) for bus_id in wanted}

    def _gpu(self, slot: _Slot, durations: dict[Tier, float], errors: Counter[str], denied: set[str]) -> SeenGpu | None:
        if slot.reader is None and boot_clock() >= slot.retry_at:
            self._open(slot)
        if slot.reader is None:
            return _fault(slot) if slot.visible else None
        reader = slot.reader
        try:
            for tier in durations if reader.values else ALL_TIERS:
                began = boot_clock()
                reader.read(tier)
                durations[tier if tier in durations else FAST] += boot_clock() - began
        except GpuFaultError as fault:
            self._close(slot, fault.fault, str(fault))
            errors[f"fast,{slot.fault}"] += 1
            return _fault(slot)
        finally:
            errors.update(reader.errors)
            denied.update(reader.denied)
            reader.errors.clear()
        return self._seen(slot, reader)

    def _seen(self, slot: _Slot, reader: GpuReader) -> SeenGpu:
        now = boot_clock()
        watched = now - slot.read_at if slot.read_at is not None else 0.0
        slot.read_at = now
        watched = watched if watched <= self._gap else 0.0
        return SeenGpu(
            bus_id=slot.bus_id,
            uuid=slot.uuid,
            index=slot.index,
            gpu=Gpu(**reader.values),
            links=reader.links,
            watched=watched,
            increments=reader.increments(watched),
        )

    def _open(self, slot: _Slot) -> None:
        bus_id = slot.bus_id
        try:
            handle = self._library.call("nvmlDeviceGetHandleByPciBusId", bus_id.encode(), bus_id=bus_id)
            reader = GpuReader(self._library, handle, bus_id, self._field_ids)
            slot.uuid = _text(self._library.call("nvmlDeviceGetUUID", handle, bus_id=bus_id))
            if slot.uuid in self._unwanted:
                slot.visible, slot.retry_at = False, float("inf")
                return
            slot.index = int(self._library.call("nvmlDeviceGetIndex", handle, bus_id=bus_id))
        except NvmlError as error:
            self._cannot_open(slot, error)
        else:
            slot.reader, slot.fault, slot.error, slot.visible, slot.read_at = reader, None, "", True, None
            self.events.watch(handle, bus_id, slot.uuid)

    def _cannot_open(self, slot: _Slot, error: NvmlError) -> None:
        if error.code in GONE:
            raise error
        # On the bus but not given to us: a container or a guest sees some GPUs only.
        slot.visible = error.code not in {NOT_FOUND, GPU_NOT_FOUND} or slot.uuid is not None
        self._close(slot, OPEN_FAULTS.get(error.code, "init_failed"), str(error))

    def _close(self, slot: _Slot, fault: str, error: str) -> None:
        self.events.forget(slot.bus_id)
        slot.reader, slot.fault, slot.error = None, fault, error
        slot.retry_at = boot_clock() + REOPEN_SECONDS


def _fault(slot: _Slot) -> SeenGpu:
    return SeenGpu(bus_id=slot.bus_id, uuid=slot.uuid, index=slot.index, fault=slot.fault, error=slot.error)


def _count(library: Library) -> int | None:
    try:
        return int(library.call("nvmlDeviceGetCount"))
    except NvmlError as error:
        if error.code in GONE:
            raise
        return None


def _optional(library: Library, function: str) -> str | None:
    try:
        return _text(library.call(function))
    except NvmlError:
        return None


def _cuda(library: Library) -> str | None:
    """The unversioned call: its successor needs libcuda as well."""
    try:
        number = int(library.call("nvmlSystemGetCudaDriverVersion"))
    except NvmlError:
        return None
    return f"{number // 1000}.{number % 1000 // 10}"


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
