"""The PCI bus as sysfs shows it. Needs no NVIDIA driver, and no attribute read here asks the device itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gpumon.model.bus_id import nvml_bus_id, parsed

NVIDIA = "0x10de"
GPU_CLASSES = ("0x0300", "0x0302")
"""VGA and 3D controllers: not the NVSwitches (0680), not the audio functions (0403)."""


def functions(sysfs: Path) -> Mapping[str, str]:
    """NVIDIA GPUs by bus id as NVML writes it ("00000000:1B:00.0"), with the driver bound, "" for none."""
    found = {}
    for device in sorted((sysfs / "bus/pci/devices").glob("*")):
        if (device / "physfn").is_symlink():  # a share of a GPU, for a virtual machine
            continue
        if _read(device / "vendor") == NVIDIA and _read(device / "class")[:6] in GPU_CLASSES:
            driver = device / "driver"
            found[nvml_bus_id(device.name)] = driver.resolve().name if driver.is_symlink() else ""
    return found


def ports(sysfs: Path) -> Mapping[str, str]:
    """By GPU, the PCIe port that its link leads to: what that reports is about the GPU, or the link."""
    above = {one: (sysfs / "bus/pci/devices" / _kernel_name(one)).resolve().parent.name for one in functions(sysfs)}
    return {one: port for one, name in above.items() if (port := parsed(name)) is not None}


def _kernel_name(bus_id: str) -> str:
    domain, _, rest = bus_id.partition(":")
    return f"{int(domain, 16):04x}:{rest.lower()}"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:  # the device went away between the listing and the look
        return ""


def uuids(procfs: Path) -> Mapping[str, str]:
    """Bus id -> uuid as the kernel module shows them without a GPU being opened; it knows those opened before."""
    known = {}
    for information in (procfs / "driver/nvidia/gpus").glob("*/information"):
        for line in _read(information).splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "GPU UUID" and "?" not in value:
                known[nvml_bus_id(information.parent.name)] = value.strip()
    return known
