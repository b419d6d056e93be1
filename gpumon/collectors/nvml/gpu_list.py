"""List the GPUs and NVSwitches of this node: from sysfs and procfs or, if these show no GPU, from the driver.

What reads files needs no driver, except for the UUIDs, and does not access the devices. `sysfs` and `procfs` are the
folders /sys and /proc, or copies of them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from gpumon.collectors.nvml.library import Library, NvmlError
from gpumon.model.bus_id import nvml_bus_id, parse_bus_id
from gpumon.model.orders import INDEX_PREFIX

NVIDIA = "0x10de"
GPU_CLASSES = ("0x0300", "0x0302")
"""PCI classes of VGA and 3D controllers. Audio functions have 0403."""
NVSWITCH_CLASS = "0x0680"
"""PCI class of a bridge. NVSwitches up to the Hopper generation have it; later NVSwitches are not on the PCI bus."""

MAX_LANES = 32
"""Highest number of lanes that a PCIe port can have. The kernel shows 255 for an unknown number."""


def functions(sysfs: Path) -> Mapping[str, str]:
    """Return the kernel driver of each NVIDIA GPU ("" for none), without virtual functions, by bus id."""
    drivers = {}
    for device in sorted((sysfs / "bus/pci/devices").glob("*")):
        if (device / "physfn").is_symlink():  # a virtual function of a GPU, for a virtual machine
            continue
        if _read(device / "vendor") == NVIDIA and _read(device / "class")[:6] in GPU_CLASSES:
            driver = device / "driver"
            drivers[nvml_bus_id(device.name)] = driver.resolve().name if driver.is_symlink() else ""
    return drivers


def nvswitches(sysfs: Path) -> int:
    """Return the number of NVSwitches on the PCI bus. A guest has them only if it owns all GPUs of the host."""
    classes = (
        _read(device / "class")[:6]
        for device in (sysfs / "bus/pci/devices").glob("*")
        if _read(device / "vendor") == NVIDIA
    )
    return list(classes).count(NVSWITCH_CLASS)


def ports(sysfs: Path) -> Mapping[str, str]:
    """Return the bus id of each GPU's upstream PCIe port, whose errors concern the GPU, by the GPU's bus id."""
    above = {function: folder.name for function, folder in _folders_above(sysfs)}
    return {function: port for function, name in above.items() if (port := parse_bus_id(name)) is not None}


def slot_lanes(sysfs: Path) -> Mapping[str, int]:
    """Return how many lanes the upstream PCIe port of each GPU supports, if known, by bus id of the GPU."""
    texts = {function: _read(folder / "max_link_width") for function, folder in _folders_above(sysfs)}
    lanes = {function: int(text) for function, text in texts.items() if text.isdecimal()}
    return {function: number for function, number in lanes.items() if 0 < number <= MAX_LANES}


def _folders_above(sysfs: Path) -> Iterator[tuple[str, Path]]:
    """Yield the bus id of each GPU and the sysfs folder above it: that of its upstream PCIe port, if it has one."""
    for function in functions(sysfs):
        domain, _, rest = function.partition(":")
        kernel_name = f"{int(domain, 16):04x}:{rest.lower()}"
        yield function, (sysfs / "bus/pci/devices" / kernel_name).resolve().parent


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:  # the device disappeared between listing and reading
        return ""


def uuids(procfs: Path) -> Mapping[str, str]:
    """Return GPU UUIDs by bus id from the kernel module's files in /proc, without opening a GPU.

    A GPU that was never opened has no UUID there and is left out.
    """
    uuids = {}
    for information in (procfs / "driver/nvidia/gpus").glob("*/information"):
        for line in _read(information).splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "GPU UUID" and "?" not in value:
                uuids[nvml_bus_id(information.parent.name)] = value.strip()
    return uuids


log = logging.getLogger("gpumon.collectors.nvml")


class DriverList:
    """Bus ids of the GPUs that the driver has listed. A GPU stays in the list after it has failed.

    `bus_ids`: bus ids that earlier child processes listed. They are in the list without a driver call, because a call
    for a GPU that hangs does not return. A name such as "index 4" among them is the index of a GPU whose lookup hung;
    that index is not looked up.
    """

    def __init__(self, library: Library, bus_ids: Iterable[str]) -> None:
        self._library = library
        names = set(bus_ids)
        self._hanging = {name for name in names if name.startswith(INDEX_PREFIX)}
        self._drivers = dict.fromkeys(names - self._hanging, "nvidia")

    def read(self) -> Mapping[str, str]:
        """Return the driver of each listed GPU, which is "nvidia", by bus id.

        If the driver counts more GPUs than those listed and those whose lookup hung, first look up every index whose
        lookup has not hung.
        """
        try:
            count = int(self._library.call("nvmlDeviceGetCount"))
        except NvmlError:  # not initialised, or the driver is gone
            return self._drivers
        if count > len(self._drivers) + len(self._hanging):
            for index in range(count):
                if f"{INDEX_PREFIX}{index}" not in self._hanging:
                    self.look_up(index)
        return self._drivers

    def look_up(self, index: int) -> None:
        """Add the bus id of the GPU with this index. If the lookup fails, log it and add nothing."""
        name = f"{INDEX_PREFIX}{index}"
        try:
            handle = self._library.call("nvmlDeviceGetHandleByIndex", index, bus_id=name)
            bus_id = self._library.call("nvmlDeviceGetPciInfo", handle, bus_id=name).busId
        except NvmlError as error:
            log.debug("a GPU cannot be listed", extra={"index": index, "error": error.name})
            return
        self._drivers[bus_id.decode() if isinstance(bus_id, bytes) else bus_id] = "nvidia"
