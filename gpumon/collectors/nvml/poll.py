"""Poll the GPUs of this node: open them one by one, read the tiers that are due, and return a Snapshot."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from gpumon.clock import boot_clock
from gpumon.collectors.nvml.device import GpuFaultError
from gpumon.collectors.nvml.fields import field_ids, version
from gpumon.collectors.nvml.gpu_reader import EVERYTHING, SLOW_SECONDS, Extent, GpuReader, Tally, Turns
from gpumon.collectors.nvml.library import (
    GONE,
    GPU_IS_LOST,
    GPU_NOT_FOUND,
    NO_PERMISSION,
    NOT_FOUND,
    OPERATING_SYSTEM,
    RESET_REQUIRED,
    UNKNOWN,
    Library,
    NvmlError,
)
from gpumon.collectors.nvml.link_reader import PeerAccess
from gpumon.collectors.nvml.nvml_events import Events
from gpumon.model.call_progress import AGAIN
from gpumon.model.reading import FAST, RARE, SLOW, Tier
from gpumon.model.snapshot import DriverStatus, GpuReading, Snapshot

REOPEN_SECONDS = 5.0
"""Seconds until a GPU that could not be opened or read is opened again."""

CLOSE_SECONDS = 0.25
"""While NodePoll.watching is set, each poll reads the slow tier if its last reading took less than these seconds."""

PARTIAL_SECONDS = 1.0
"""Seconds after which a poll in progress passes the GPUs that it has read to the callback `partial` of NodePoll."""

OPEN_FAULTS = {
    GPU_IS_LOST: "lost",
    RESET_REQUIRED: "reset_required",
    NO_PERMISSION: "no_permission",
    OPERATING_SYSTEM: "no_permission",  # a cgroup denies access to the device node
}
NAMELESS_FAULTS = frozenset({"unknown", "init_failed"})
"""Names of GPU faults that do not state a cause. If all GPUs have such a fault, NVML may have to be initialised again.
"""


def start(library: Library) -> DriverStatus:
    """Initialise NVML, set `library.driver`, and return the versions (None if unknown). Raise NvmlError if it fails."""
    library.call("nvmlInit")
    driver = _optional_text(library, "nvmlSystemGetDriverVersion")
    library.driver = version(driver or "")
    cuda = None
    with contextlib.suppress(NvmlError):  # the successor of this call needs libcuda
        number = int(library.call("nvmlSystemGetCudaDriverVersion"))
        cuda = f"{number // 1000}.{number % 1000 // 10}"
    return DriverStatus(
        up=True,
        driver=driver,
        nvml=_optional_text(library, "nvmlSystemGetNVMLVersion"),
        cuda=cuda,
    )


class _Slot:
    """The state of the GPU at one PCI address: its reader (in `turns`) if the GPU answers, otherwise its fault."""

    def __init__(self, bus_id: str) -> None:
        self.bus_id = bus_id
        self.turns: Turns | None = None
        self.uuid: str | None = None
        self.index: int | None = None
        self.fault: str | None = None
        self.error = ""
        self.visible = True
        self.tried = False
        """True after an attempt to open the GPU, successful or not."""
        self.retry_at = 0.0


class NodePoll:
    """Polls all GPUs during one initialisation of NVML. Device handles are valid only for that time.

    `driver`: version of the driver. `bus`: returns the kernel driver of each GPU by bus id. `do_not_open`: bus ids of
    GPUs that are not opened. `unwanted`: UUIDs of GPUs that are opened only once, to read the UUID. `first`: bus ids to
    open before others, in this order. `interval`: seconds between polls. `partial`: called with a snapshot of the GPUs
    read since its last call, every PARTIAL_SECONDS of a slow poll, and after each of several GPUs in a poll that reads
    the rare tier. `patience`: see Turns. `extent`: optional metrics to read.
    """

    def __init__(
        self,
        library: Library,
        driver: str,
        *,
        bus: Callable[[], Mapping[str, str]],
        do_not_open: Collection[str],
        unwanted: Collection[str] = (),
        first: Sequence[str] = (),
        interval: float,
        partial: Callable[[Snapshot], None] = lambda _: None,
        patience: float = SLOW_SECONDS,
        extent: Extent = EVERYTHING,
    ) -> None:
        self._library = library
        self._field_ids = field_ids(driver)
        self._bus = bus
        self._do_not_open = do_not_open
        self._unwanted = unwanted
        self._first = {bus_id: place for place, bus_id in enumerate(first)}
        self._slots: dict[str, _Slot] = {}
        self._slow_took = 0.0
        """Seconds that the last reading of the slow tier of all GPUs took."""
        self._due: dict[Tier, float] = dict.fromkeys((RARE, SLOW, FAST), 0.0)
        self._gap = max(3 * interval, 10.0)
        self._partial = partial
        self._patience = patience
        self._extent = extent
        self._peer_access = PeerAccess()
        self._has_watched = False
        self._bound = 0
        self._counted: int | None = None
        self.events = Events(library)
        self.bus_changed = False
        """Set by the sampler if the PCI bus has changed. The next poll then enumerates the GPUs again."""
        self.watching = False
        """If True, each poll reads the processes of each GPU and, if CLOSE_SECONDS allows it, the slow tier."""
        self.blind_since: float | None = None
        """Time on the boot clock since which all visible GPUs have had NAMELESS_FAULTS, perhaps because the kernel
        module was reloaded; None if a GPU answers or its fault states a cause.
        """

    @property
    def uuids(self) -> Mapping[str, str]:
        """Return the UUIDs of the GPUs that were opened, by bus id."""
        return {bus_id: slot.uuid for bus_id, slot in self._slots.items() if slot.uuid is not None}

    def poll(self) -> Snapshot:
        """Read the due tiers. Return the GPUs not yet passed to `partial`. Raise NvmlError if the driver is gone."""
        tiers = self._tiers_due()
        if RARE in tiers or SLOW in tiers or self.bus_changed or not self._slots:
            self._enumerate()
        self._read_peer_access()
        tally = Tally(tiers)
        before, self._counted = self._counted, _count(self._library)
        if before not in {None, self._counted}:
            self._renumber()
        readings: list[GpuReading] = []
        reported_at = boot_clock()
        for slot in self._slots.values():
            readings += self._gpu(slot, tally)
            # A first poll may hang at any GPU: the readings of earlier GPUs must not be lost.
            if boot_clock() - reported_at > PARTIAL_SECONDS or (RARE in tiers and len(self._slots) > 1):
                self._partial(self._snapshot(readings, tally, complete=False))
                readings, reported_at = [], boot_clock()
        self._slow_took = tally.durations.get(SLOW, self._slow_took)
        self._note_blindness()
        if self.blind_since is not None and self._counted is None:
            raise NvmlError(UNKNOWN, "every call")  # no single GPU makes the count fail: the driver is gone
        self.events.prepare()
        return self._snapshot(readings, tally, complete=self._has_tried_all)

    def _renumber(self) -> None:
        """Read NVML's index of each open GPU again, because the driver lists more or fewer GPUs than before."""
        for slot in self._slots.values():
            if slot.turns is not None:
                handle = slot.turns.reader.device.handle
                try:
                    slot.index = int(self._library.call("nvmlDeviceGetIndex", handle, bus_id=slot.bus_id))
                except NvmlError:
                    slot.index = None  # the GPU's reading reports the error

    def _read_peer_access(self) -> None:
        """Begin to read peer access when `watching` becomes True, else continue. Pass the result to the readers."""
        readers = {slot.uuid: slot.turns.reader for slot in self._slots.values() if slot.turns and slot.uuid}
        if self.watching and not self._has_watched:
            self._peer_access.begin({uuid: reader.device for uuid, reader in readers.items()})
        self._has_watched = self.watching
        for uuid, access in self._peer_access.take().items():
            if uuid in readers:
                readers[uuid].peer_access = access

    def _note_blindness(self) -> None:
        faults = {slot.fault for slot in self._slots.values() if slot.visible}
        if not faults or not faults <= NAMELESS_FAULTS:
            self.blind_since = None
        elif self.blind_since is None:
            self.blind_since = boot_clock()

    def _snapshot(self, readings: Sequence[GpuReading], tally: Tally, *, complete: bool) -> Snapshot:
        return Snapshot(
            ended_at=boot_clock(),
            wall=time.time(),
            durations={tier.name.lower(): seconds for tier, seconds in tally.durations.items()},
            gpus=tuple(readings),
            present=tuple(bus_id for bus_id, slot in self._slots.items() if slot.visible),
            complete=complete,
            visible=self._counted,
            errors=dict(tally.errors),
            denied=tuple(sorted(tally.denied)),
        )

    def _tiers_due(self) -> Sequence[Tier]:
        now = boot_clock()
        closely = self.watching and self._slow_took < CLOSE_SECONDS
        always = {FAST, SLOW} if closely else {FAST}
        due = [tier for tier, at in self._due.items() if tier in always or at <= now]
        for tier in due:
            self._due[tier] = now + tier.value
        return due

    def _enumerate(self) -> None:
        """Update the list of GPUs to open, those bound to the kernel driver nvidia, and close all others."""
        self.bus_changed = False
        bound = sorted(bus_id for bus_id, driver in self._bus().items() if driver == "nvidia")
        self._bound = len(bound)
        wanted = [bus_id for bus_id in bound if bus_id not in self._do_not_open]
        wanted.sort(key=lambda bus_id: self._first.get(bus_id, len(self._first)))
        for bus_id in set(self._slots) - set(wanted):
            self._release(self._slots[bus_id])
        self._slots = {bus_id: self._slots.get(bus_id) or _Slot(bus_id) for bus_id in wanted}

    def _gpu(self, slot: _Slot, tally: Tally) -> Sequence[GpuReading]:
        """Read one GPU, and open it first if necessary. Return its reading; if it has failed, a reading with its fault.

        Return () while its readings pause, while its fast tier is incomplete, before it was opened, or if it is
        unwanted or not visible in this container or guest. Raise NvmlError if the driver itself is gone.
        """
        now = boot_clock()
        if slot.bus_id in self.events.changed:
            self.events.changed.discard(slot.bus_id)
            if slot.turns is not None:
                slot.turns.hurry()  # with another MIG layout the GPU may support other calls
        if slot.turns is not None and slot.turns.rest_until > now:
            return ()
        try:
            if slot.turns is None and now >= slot.retry_at and not tally.opened_slowly:
                self._open_in_turn(slot, tally)
            if slot.turns is not None:
                slot.turns.reader.watching = self.watching
                is_read = slot.turns.take(tally)
                return (slot.turns.reader.reading(slot.uuid, slot.index, self._gap),) if is_read else ()
        except GpuFaultError as fault:
            if fault.error.code in GONE:
                _count(self._library)  # raises NvmlError if the driver is gone, not only this GPU
            if slot.visible:  # a GPU that was not given to this container is not an error
                tally.errors[f"fast,{fault.error.name}"] += 1
            self._release(slot)
            slot.fault, slot.error = fault.fault, str(fault)
            slot.retry_at = boot_clock() + REOPEN_SECONDS
        if slot.fault is None or not slot.visible:
            return ()
        return (GpuReading(bus_id=slot.bus_id, uuid=slot.uuid, index=slot.index, fault=slot.fault, error=slot.error),)

    def _open_in_turn(self, slot: _Slot, tally: Tally) -> None:
        """Open the GPU, unless it failed before and others were not tried. Note in `tally` if that was slow."""
        if slot.tried and not self._has_tried_all:
            return
        began = boot_clock()
        try:
            self._open(slot)
        finally:
            tally.opened_slowly = boot_clock() - began > self._patience

    @property
    def _has_tried_all(self) -> bool:
        return all(slot.tried for slot in self._slots.values())

    def _open(self, slot: _Slot) -> None:
        """Open the GPU and create its reader; only read its UUID if it is unwanted. Raise GpuFaultError if it fails."""
        bus_id, slot.tried = slot.bus_id, True
        # The first lookup initialises the GPU and may take long. A repeated one has the usual deadline.
        note = AGAIN if slot.fault is not None else ""
        try:
            handle = self._library.call("nvmlDeviceGetHandleByPciBusId", bus_id.encode(), bus_id=bus_id, note=note)
            slot.uuid = _text(self._library.call("nvmlDeviceGetUUID", handle, bus_id=bus_id))
            if slot.uuid in self._unwanted:
                slot.visible, slot.retry_at = False, float("inf")
                return
            slot.index = int(self._library.call("nvmlDeviceGetIndex", handle, bus_id=bus_id))
        except NvmlError as error:
            # The GPU is on the bus but may be invisible: a container or a guest has access to only some GPUs.
            ours = self._counted is not None and self._counted >= self._bound
            slot.visible = error.code not in {NOT_FOUND, GPU_NOT_FOUND} or slot.uuid is not None or ours
            raise GpuFaultError(OPEN_FAULTS.get(error.code, "init_failed"), error) from None
        reader = GpuReader(self._library, handle, bus_id, self._field_ids, self._extent)
        slot.turns = Turns(reader, self._patience, self._gap)
        slot.fault, slot.error, slot.visible = None, "", True
        self.events.watch(handle, bus_id, slot.uuid)

    def _release(self, slot: _Slot) -> None:
        self.events.forget(slot.bus_id)
        if slot.turns is not None:
            slot.turns.reader.close()
            slot.turns = None

    def close(self) -> None:
        """Free GPM samples and the event set, and close all GPUs, but keep NVML initialised."""
        for slot in self._slots.values():
            self._release(slot)
        self.events.close()


def _count(library: Library) -> int | None:
    try:
        return int(library.call("nvmlDeviceGetCount"))
    except NvmlError as error:
        if error.code in GONE:
            raise
        return None


def _optional_text(library: Library, function: str) -> str | None:
    try:
        return _text(library.call(function))
    except NvmlError:
        return None


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
