"""Read the MIG instances of one GPU.

Each reading opens the handles of the instances again: after a change of the MIG layout a handle is invalid or refers
to another instance.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Iterator
from typing import Any, NamedTuple

from gpumon.collectors.nvml.device import Device
from gpumon.collectors.nvml.gpm import SamplePair
from gpumon.collectors.nvml.library import NO_PERMISSION, NOT_FOUND, UNSUPPORTED, NvmlError
from gpumon.collectors.nvml.table_reader import TableReader, no_gpm, rows_of, words
from gpumon.model.mig import Mig
from gpumon.model.reading import SLOW
from gpumon.model.snapshot import MigReading

log = logging.getLogger("gpumon.collectors.nvml")

EMPTY_SLOT = UNSUPPORTED | {NOT_FOUND}
_MIB_A_GIB = 1024


class Instance(NamedTuple):
    """One MIG compute instance. Its device handle is valid for the current reading only."""

    device: Device
    uuid: str
    gpu_instance: int
    compute_instance: int
    profile: str


class Instances:
    """Reads the MIG instances of a GPU, which each reading enumerates again. `gpm`: whether to read GPM metrics."""

    def __init__(self, gpu: Device, *, gpm: bool) -> None:
        self._gpu = gpu
        self._gpm = gpm
        self._pairs: dict[int, SamplePair] = {}
        """The two GPM samples of each GPU instance, by GPU instance id."""
        self._layout: tuple[tuple[str, int, int, str], ...] | None = None
        self.readings: tuple[MigReading, ...] = ()

    def read(self) -> Iterator[None]:
        """Read all instances and set `readings`; yield between calls. Raise GpuFaultError if the whole GPU fails."""
        self._gpu.denied -= {name for name in self._gpu.denied if name.startswith("mig_")}
        instances: list[Instance] = []
        try:
            slots = int(self._call("nvmlDeviceGetMaxMigDeviceCount", self._gpu))
        except NvmlError as error:
            self._judge(error)
            slots = 0
        for slot in range(slots):
            instance = self._open(slot)
            instances += [] if instance is None else [instance]
            yield
        layout = tuple(instance[1:] for instance in instances)
        if layout != self._layout:
            if self._layout is not None:
                log.info("the MIG layout changed", extra={"pci_bus_id": self._gpu.bus_id, "instances": len(layout)})
            self.close()  # samples taken before may belong to another instance
            self._layout = layout
        if self._gpm:
            self._sample({instance.gpu_instance for instance in instances})
        readings: tuple[MigReading, ...] = ()
        for instance in instances:
            readings = (*readings, (yield from self._read(instance)))
        self.readings = readings

    def close(self) -> None:
        """Free all GPM samples, and discard the layout and the readings."""
        for pair in self._pairs.values():
            pair.free()
        self._pairs.clear()
        self._layout, self.readings = None, ()

    def _open(self, slot: int) -> Instance | None:
        """Return the MIG instance in this slot; None if there is none, or if it cannot be read."""
        try:
            device = self._gpu.instance(self._call("nvmlDeviceGetMigDeviceHandleByIndex", self._gpu, slot))
            return Instance(
                device,
                words("", self._call("nvmlDeviceGetUUID", device)),
                int(self._call("nvmlDeviceGetGpuInstanceId", device)),
                int(self._call("nvmlDeviceGetComputeInstanceId", device)),
                self._profile(device),
            )
        except NvmlError as error:
            self._judge(error)
            return None

    def _profile(self, device: Device) -> str:
        """Return the profile, such as 1g.10gb, from the device name or, without one, from slices and memory size."""
        _, _, profile = words("", self._call("nvmlDeviceGetName", device)).rpartition(" MIG ")
        if profile:
            return profile
        has = self._call("nvmlDeviceGetAttributes_v2", device)
        part, whole = has.computeInstanceSliceCount, has.gpuInstanceSliceCount
        compute = f"{part}c." if part != whole else ""
        return f"{compute}{whole}g.{-(-has.memorySizeMB // _MIB_A_GIB)}gb"

    def _call(self, function: str, device: Device, *arguments: int) -> Any:
        return device.library.call(function, device.handle, *arguments, bus_id=device.bus_id)

    def _judge(self, error: NvmlError) -> None:
        if error.code == NO_PERMISSION:
            self._gpu.denied.add("mig_instances")
        elif error.code not in EMPTY_SLOT:
            self._gpu.judge(error)

    def _sample(self, gpu_instances: Iterable[int]) -> None:
        """Take one GPM sample of each GPU instance, for all compute instances in it."""
        for instance in gpu_instances:
            pair = self._pairs[instance] = self._pairs.get(instance) or SamplePair(self._gpu, instance)
            try:
                pair.read()
            except NvmlError as error:
                self._judge(error)

    def _read(self, instance: Instance) -> Generator[None, None, MigReading]:
        gpm = self._pairs[instance.gpu_instance].value if self._gpm else no_gpm
        reader = TableReader(Mig, instance.device, gpm=gpm)
        yield from reader.read(rows_of(Mig, SLOW))
        return MigReading(
            uuid=instance.uuid,
            gpu_instance_id=instance.gpu_instance,
            compute_instance_id=instance.compute_instance,
            profile=instance.profile,
            mig=Mig(info=1.0, **reader.values),
        )
