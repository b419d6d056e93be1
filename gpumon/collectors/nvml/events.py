"""NVML's event set, looked at without waiting: one thread makes all driver calls, so none needs to be joined.

Xids are told; what else an event announces is read sooner for it.
"""

from __future__ import annotations

import ctypes
import logging
import time
from typing import Any

from gpumon.clock import boot_clock
from gpumon.collectors.nvml.library import GONE, GPU_IS_LOST, TIMEOUT, Library, NvmlError
from gpumon.model.snapshot import XidEvent

log = logging.getLogger("gpumon.collectors.nvml")

XID_ERROR, MIG_CONFIG, UNAVAILABLE, RECOVERY_ACTION = 0x8, 0x100, 0x4000, 0x8000
ANNOUNCED = {
    MIG_CONFIG: "the MIG configuration changes",
    UNAVAILABLE: "the driver says that this GPU is unavailable",
    RECOVERY_ACTION: "the driver has new advice on this GPU",
}
"""Events that carry nothing: the readings say the rest."""
WANTED = XID_ERROR | MIG_CONFIG | UNAVAILABLE | RECOVERY_ACTION
NOT_ATTRIBUTED = 0xFFFFFFFF
MOST_AT_ONCE = 64
"""Events taken in one poll: a storm must not keep the readings waiting."""
BACK_OFF = (1.0, 30.0)


class Events:
    """One event set over all opened GPUs; rebuilt, with back-off, when the driver refuses it."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._set: Any = None
        self._gpus: dict[int, tuple[str, str | None]] = {}
        self._wanted: list[tuple[Any, str, str | None]] = []
        self._retry_at = 0.0
        self._delay = BACK_OFF[0]
        self._drained: list[XidEvent] = []
        self.announced: set[str] = set()
        """Bus ids of GPUs of which something is to be read again at once. Who reads it takes it out."""

    def watch(self, handle: Any, bus_id: str, uuid: str | None) -> None:
        """Report the Xids of this GPU from now on. What came before is not told."""
        self._wanted = [one for one in self._wanted if one[1] != bus_id] + [(handle, bus_id, uuid)]
        if self._set is not None:
            self._register(handle, bus_id, uuid)

    def forget(self, bus_id: str) -> None:
        """Of a GPU that does not answer: a set that holds it answers for no other either."""
        wanted = [one for one in self._wanted if one[1] != bus_id]
        if len(wanted) != len(self._wanted):
            self._wanted = wanted
            if self._set is not None:
                self._collect(self._drained)  # its last words, and what its neighbours have said meanwhile
            self._free()
            self._retry_at = 0.0  # the set is well again without it

    def prepare(self) -> None:
        """Have the set ready, so that what happens before the next look is not missed."""
        if self._set is None:
            self._build()

    def take(self) -> list[XidEvent]:
        """All events since the last call; none, and no error, while the driver refuses the set."""
        taken, self._drained = self._drained, []
        self.prepare()
        if self._set is not None:
            self._collect(taken)
        return taken

    def _collect(self, taken: list[XidEvent]) -> None:
        try:
            for _ in range(MOST_AT_ONCE - len(taken)):
                event = self._library.call("nvmlEventSetWait_v2", self._set, 0)
                if event.eventType & XID_ERROR:
                    taken.append(self._xid(event))
                else:
                    self._announce(event)
        except NvmlError as error:
            if error.code != TIMEOUT:
                self._fail(error)
            else:
                self._delay = BACK_OFF[0]

    def _build(self) -> None:
        if not self._wanted or boot_clock() < self._retry_at:
            return
        try:
            self._set = self._library.call("nvmlEventSetCreate")
        except NvmlError as error:
            self._fail(error)
            return
        self._gpus.clear()
        for handle, bus_id, uuid in self._wanted:
            self._register(handle, bus_id, uuid)

    def _register(self, handle: Any, bus_id: str, uuid: str | None) -> None:
        try:
            supported = self._library.call("nvmlDeviceGetSupportedEventTypes", handle, bus_id=bus_id)
            if self._ask_for(handle, supported, bus_id):
                self._gpus[_address(handle)] = (bus_id, uuid)
        except NvmlError as error:
            log.warning("no Xid events from this GPU", extra={"bus_id": bus_id, "error": error.name})

    def _ask_for(self, handle: Any, supported: int, bus_id: str) -> bool:
        """An unsupported bit would leave the GPU without any event; so might one that is not for this user."""
        every, least = supported & WANTED, supported & XID_ERROR
        try:
            if every:
                self._library.call("nvmlDeviceRegisterEvents", handle, every, self._set, bus_id=bus_id)
        except NvmlError as error:
            if not least or every == least or error.code in GONE or error.code == GPU_IS_LOST:
                raise
            self._library.call("nvmlDeviceRegisterEvents", handle, least, self._set, bus_id=bus_id)
        return bool(every)

    def _xid(self, event: Any) -> XidEvent:
        bus_id, uuid = self._gpus.get(_address(event.device), ("", None))
        return XidEvent(
            xid=int(event.eventData),
            bus_id=bus_id,
            uuid=uuid,
            at=boot_clock(),
            wall=time.time(),
            gpu_instance_id=_attributed(event.gpuInstanceId),
            compute_instance_id=_attributed(event.computeInstanceId),
        )

    def _announce(self, event: Any) -> None:
        bus_id, _ = self._gpus.get(_address(event.device), ("", None))
        if bus_id not in self.announced:  # a storm of them is one thing to read
            self.announced.add(bus_id)
            log.warning(ANNOUNCED.get(event.eventType, "an event that was not asked for"), extra={"bus_id": bus_id})

    def _fail(self, error: NvmlError) -> None:
        """An error other than a timeout comes back at once, every time: without a pause this would spin."""
        log.warning("the event set failed; it will be built again", extra={"error": error.name, "in": self._delay})
        self._free()
        self._retry_at = boot_clock() + self._delay
        self._delay = min(self._delay * 2, BACK_OFF[1])

    def close(self) -> None:
        """Give the set back."""
        self._wanted.clear()
        self._free()

    def _free(self) -> None:
        if self._set is not None:
            try:
                self._library.call("nvmlEventSetFree", self._set)
            except NvmlError as error:
                log.debug("the event set could not be freed", extra={"error": error.name})
        self._set = None


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _attributed(instance: int) -> int | None:
    return None if instance == NOT_ATTRIBUTED else int(instance)
