"""Select the node that the sampler child reads: the real one, or a simulated one with the same C functions of NVML."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pynvml

from gpumon.collectors.node_source import node_source
from gpumon.collectors.nvml import gpu_list
from gpumon.model.bus_id import parse_bus_id
from gpumon.model.frame import Frame
from gpumon.model.orders import SamplerOrders, SimulationError
from gpumon.model.snapshot import CONTAINER, GUEST, HOST, DriverStatus

AGAIN_SECONDS = 1.0

NvidiaBus = Callable[[], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class HostContext:
    """Where the agent runs, and functions that read data about the GPUs from sysfs and procfs without driver calls."""

    bus: NvidiaBus
    """Function that returns the kernel driver bound to each GPU, by bus id."""
    uuids: NvidiaBus
    """Function that returns the UUIDs that the kernel module lists without opening a GPU, by bus id."""
    place: str = HOST
    """Where the agent runs: one of PLACES. It cannot change while the process runs."""
    ports: NvidiaBus = dict
    """Function that returns the bus id of the upstream PCIe port of each GPU, by bus id of the GPU."""
    slot_lanes: Callable[[], Mapping[str, int]] = dict
    """Function that returns how many lanes the upstream PCIe port of each GPU supports, by bus id of the GPU."""
    nvswitches: Callable[[], int] = int
    """Function that returns the number of NVSwitches on the PCI bus."""


def surroundings(orders: SamplerOrders) -> HostContext:
    """Return the context of the real or simulated node. Raise SimulationError if it cannot be simulated."""
    if orders.simulation is not None:
        node = node_source().open_node(orders.simulation)
        pynvml.nvmlLib = node.library
        return HostContext(
            node.pci_functions, node.uuids, node.place, slot_lanes=node.slot_lanes, nvswitches=node.nvswitches
        )
    sysfs, procfs = Path(orders.sysfs), Path(orders.procfs)
    return HostContext(
        bus=lambda: gpu_list.functions(sysfs),
        uuids=lambda: gpu_list.uuids(procfs),
        place=place(sysfs=sysfs, procfs=procfs, root=Path("/"), environment=os.environ),
        ports=lambda: gpu_list.ports(sysfs),
        # The virtual port of a guest, and of a container in it, does not show the lanes of the physical slot.
        slot_lanes=dict if is_virtual(sysfs, procfs) else lambda: gpu_list.slot_lanes(sysfs),
        nvswitches=lambda: gpu_list.nvswitches(sysfs),
    )


def await_surroundings(orders: SamplerOrders, send: Callable[[Frame], None]) -> HostContext:
    """Return the context of the node to read. While it cannot be simulated, send the error and try again."""
    while True:
        try:
            return surroundings(orders)
        except SimulationError as error:
            send(DriverStatus(up=False, error="SimulationError", remedy=str(error)))
            time.sleep(AGAIN_SECONDS)


def excluded_gpus(names: Iterable[str], gpus: Mapping[str, str], uuids: Mapping[str, str]) -> Mapping[str, str | None]:
    """Return the bus ids of the GPUs that the configuration excludes, by name.

    A name is a bus id, a UUID, or a position in PCI order among the GPUs with the kernel driver nvidia or none. `gpus`:
    kernel driver by bus id. `uuids`: UUID by bus id. The value is "" if there is no such position, or if no GPU has the
    UUID; None if the GPU with the UUID may be one that is not in `uuids`.
    """
    # GPUs without a kernel driver count too: before the module nvidia is loaded, no GPU is bound to it.
    ours = sorted(bus_id for bus_id, driver in gpus.items() if driver in {"", "nvidia"})
    by_uuid = {uuid: bus_id for bus_id, uuid in uuids.items()}
    otherwise = "" if uuids.keys() >= set(ours) else None
    return {
        name: "".join(ours[int(name) : int(name) + 1])
        if name.isdigit()
        else parse_bus_id(name) or by_uuid.get(name, otherwise)
        for name in names
    }


_MARKS = ("run/.containerenv", ".dockerenv")
"""Files by which a container is detected: Podman and Docker create them in its root folder."""
_VARIABLES = frozenset({"KUBERNETES_SERVICE_HOST", "NVIDIA_VISIBLE_DEVICES"})
"""Environment variables of Kubernetes pods and of containers with GPUs."""
_GROUPS = re.compile(r"kubepods|docker[-/]|libpod|crio-|/lxc")
_VENDORS = re.compile(
    r"QEMU|KVM|VMware|Xen|innotek|Parallels|Virtual Machine|Compute Engine|Alibaba Cloud ECS|OpenStack"
)
"""DMI vendors and products of virtual machines. Amazon's name is left out, because its bare-metal machines have it too.
"""


def place(*, sysfs: Path, procfs: Path, root: Path, environment: Mapping[str, str]) -> str:
    """Return where the agent runs: CONTAINER, also in a virtual machine, else GUEST (virtual machine) or HOST."""
    marked = any((root / mark).exists() for mark in _MARKS) or bool(_VARIABLES & environment.keys())
    started = re.search(r"(^|\0)container=[^\0]", _text(procfs / "1/environ")) is not None  # by systemd's convention
    if marked or started or _GROUPS.search(_text(procfs / "self/cgroup")):
        return CONTAINER
    return GUEST if is_virtual(sysfs, procfs) else HOST


def is_virtual(sysfs: Path, procfs: Path) -> bool:
    """Return True in a virtual machine: by the CPU flag `hypervisor` or, on Arm, by vendor and product name in DMI."""
    for line in _text(procfs / "cpuinfo").splitlines():
        if line.startswith("flags"):
            return "hypervisor" in line.split()
    firmware = " ".join(_text(sysfs / "class/dmi/id" / name).strip() for name in ("sys_vendor", "product_name"))
    return _VENDORS.search(firmware) is not None


def _text(path: Path) -> str:
    """Return the content of a file; "" if the file is missing or not readable."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
