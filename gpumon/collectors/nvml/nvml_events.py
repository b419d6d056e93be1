"""Poll NVML's event set without waiting, in the thread that makes all driver calls.

Xids are reported. Any other event makes the sampler refresh the readings of the affected GPU early.
"""

from __future__ import annotations

import ctypes
import logging
import time
from typing import Any

from gpumon.clock import boot_clock
from gpumon.collectors.nvml.library import GONE, GPU_IS_LOST, TIMEOUT, Library, NvmlError
from gpumon.model.error_event import NVML, XID, ErrorObservation

log = logging.getLogger("gpumon.collectors.nvml")

XID_ERROR, MIG_CONFIG, UNAVAILABLE, RECOVERY_ACTION = 0x8, 0x100, 0x4000, 0x8000
CHANGES = {
    MIG_CONFIG: "the MIG configuration changes",
    UNAVAILABLE: "the driver reports that this GPU is unavailable",
    RECOVERY_ACTION: "the driver has a new recovery action for this GPU",
}
"""Log message for each type of NVML event that has no data. The readings of the GPU show what has changed."""
EVENT_TYPES = XID_ERROR | MIG_CONFIG | UNAVAILABLE | RECOVERY_ACTION
NOT_ATTRIBUTED = 0xFFFFFFFF
MAX_EVENTS = 64
"""Max events taken in one poll, so that many events do not delay the readings."""
BACK_OFF = (1.0, 30.0)


class Events:
    """The NVML event set of all opened GPUs. After an error it is rebuilt, after a delay that doubles up to 30 s."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._set: Any = None
        self._gpus: dict[int, tuple[str, str | None]] = {}
        self._watched: list[tuple[Any, str, str | None]] = []
        self._retry_at = 0.0
        self._delay = BACK_OFF[0]
        self._collected: list[ErrorObservation] = []
        self.changed: set[str] = set()
        """Bus ids of GPUs whose readings must be refreshed early. NodePoll removes a bus id when it refreshes."""

    def watch(self, handle: Any, bus_id: str, uuid: str | None) -> None:
        """Register a GPU in the event set, so that `take` returns the Xids of this GPU from now on."""
        self._watched = [watched for watched in self._watched if watched[1] != bus_id] + [(handle, bus_id, uuid)]
        if self._set is not None:
            self._register(handle, bus_id, uuid)

    def forget(self, bus_id: str) -> None:
        """Remove a GPU and free the set, which fails for all GPUs if one does not answer. Waiting Xids are kept."""
        wanted = [watched for watched in self._watched if watched[1] != bus_id]
        if len(wanted) != len(self._watched):
            self._watched = wanted
            if self._set is not None:
                self._collect(self._collected)  # the last events of this GPU and of all others
            self._free()
            self._retry_at = 0.0  # without this GPU the set can be rebuilt at once

    def prepare(self) -> None:
        """Create the event set if there is none, except during the delay after an error."""
        if self._set is not None or not self._watched or boot_clock() < self._retry_at:
            return
        try:
            self._set = self._library.call("nvmlEventSetCreate")
        except NvmlError as error:
            self._fail(error)
            return
        self._gpus.clear()
        for handle, bus_id, uuid in self._watched:
            self._register(handle, bus_id, uuid)

    def take(self) -> list[ErrorObservation]:
        """Take at most MAX_EVENTS events. Return the Xids, and add the GPUs of other events to `changed`."""
        taken, self._collected = self._collected, []
        self.prepare()
        if self._set is not None:
            self._collect(taken)
        return taken

    def _collect(self, taken: list[ErrorObservation]) -> None:
        try:
            for _ in range(MAX_EVENTS - len(taken)):
                event = self._library.call("nvmlEventSetWait_v2", self._set, 0)
                bus_id, uuid = self._gpus.get(_address(event.device), ("", None))
                if event.eventType & XID_ERROR:
                    taken.append(_xid(event, bus_id, uuid))
                elif bus_id not in self.changed:  # log a storm once
                    self.changed.add(bus_id)
                    log.warning(CHANGES.get(event.eventType, "an unexpected event"), extra={"pci_bus_id": bus_id})
        except NvmlError as error:
            if error.code != TIMEOUT:
                self._fail(error)
            else:
                self._delay = BACK_OFF[0]

    def _register(self, handle: Any, bus_id: str, uuid: str | None) -> None:
        try:
            supported = self._library.call("nvmlDeviceGetSupportedEventTypes", handle, bus_id=bus_id)
            if self._register_types(handle, supported, bus_id):
                self._gpus[_address(handle)] = (bus_id, uuid)
        except NvmlError as error:
            log.warning("no Xid events from this GPU", extra={"pci_bus_id": bus_id, "error": error.name})

    def _register_types(self, handle: Any, supported: int, bus_id: str) -> bool:
        """Register the types that a GPU supports, only Xids if NVML refuses others. Return False if it has none."""
        types, xid_type = supported & EVENT_TYPES, supported & XID_ERROR
        try:
            if types:
                self._library.call("nvmlDeviceRegisterEvents", handle, types, self._set, bus_id=bus_id)
        except NvmlError as error:
            if not xid_type or types == xid_type or error.code in GONE or error.code == GPU_IS_LOST:
                raise
            self._library.call("nvmlDeviceRegisterEvents", handle, xid_type, self._set, bus_id=bus_id)
        return bool(types)

    def _fail(self, error: NvmlError) -> None:
        """Free the event set and schedule its rebuild after a delay, which doubles with each failure."""
        log.warning("NVML event set failed; re-creating it", extra={"error": error.name, "retry_seconds": self._delay})
        self._free()
        self._retry_at = boot_clock() + self._delay
        self._delay = min(self._delay * 2, BACK_OFF[1])

    def close(self) -> None:
        """Free the event set, and stop reporting the Xids of all GPUs."""
        self._watched.clear()
        self._free()

    def _free(self) -> None:
        if self._set is not None:
            try:
                self._library.call("nvmlEventSetFree", self._set)
            except NvmlError as error:
                log.debug("cannot free the event set", extra={"error": error.name})
        self._set = None


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _xid(event: Any, bus_id: str, uuid: str | None) -> ErrorObservation:
    now = boot_clock()
    instance, compute = event.gpuInstanceId, event.computeInstanceId
    return ErrorObservation(
        kind=XID,
        code=int(event.eventData),
        bus_id=bus_id,
        uuid=uuid,
        at=now,
        since=now,
        wall=time.time(),
        source=NVML,
        gpu_instance_id=None if instance == NOT_ATTRIBUTED else int(instance),
        compute_instance_id=None if compute == NOT_ATTRIBUTED else int(compute),
    )
