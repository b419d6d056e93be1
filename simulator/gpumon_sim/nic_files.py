"""Simulates the files of sysfs that describe network adapters, and the positions of GPUs on the PCIe bus."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpumon_sim.board import Profile
from gpumon_sim.nic_kinds import NicKind
from gpumon_sim.port_counters import address, devices

CLASS = "class/infiniband"
FIRMWARE = "28.43.1014"
"""Firmware version that all simulated Mellanox adapters report: a version of the ConnectX-7 firmware."""

Text = str | Callable[[], str]
"""Content of a simulated file, or function that returns it."""


def fabric_nics(profile: Profile) -> Iterator[NicKind]:
    """Yield one network adapter for each InfiniBand or RoCE device of a profile."""
    ports = profile.ports
    for number, device in enumerate(devices(profile)):
        assert ports is not None  # noqa: S101 - there are devices
        yield NicKind(
            device=device,
            address=address(number),
            link_layer=ports.link_layer,
            gigabits=ports.gigabits,
            netdev=f"eth{number}" if ports.link_layer == "Ethernet" else "",
        )


def gpu_files(profile: Profile) -> Iterator[tuple[str, Text]]:
    """Yield (path, content) for the files that locate the GPUs on the PCIe bus."""
    for number, bus_id in enumerate(profile.bus_ids):
        place = bus_id[4:].lower()
        yield f"bus/pci/drivers/nvidia/{place}", place
        yield f"bus/pci/devices/{place}", f"../../../devices/{_switch(number)}/{number:04x}:e2:00.0/{place}"
        yield f"bus/pci/devices/{place}/numa_node", "-1" if profile.guest else "0"


def card_files(nic: NicKind, guid: str, board: str, gpu: int | None) -> Iterator[tuple[str, Text]]:
    """Yield (path, content) for the files that describe an adapter.

    `gpu` is the GPU below the same PCIe switch; None if the adapter shares no switch with a GPU.
    """
    folder = f"{CLASS}/{nic.device}"
    bridges = f"{_switch(gpu)}/{gpu:04x}:e2:01.0" if gpu is not None else "pci00f0:00/00f0:00:01.0"
    yield folder, f"../../devices/{bridges}/{nic.address}/infiniband/{nic.device}"
    yield f"{folder}/node_guid", guid
    yield f"{folder}/device/uevent", f"DRIVER={nic.driver}\nPCI_SLOT_NAME={nic.address}"
    yield f"{folder}/device/numa_node", str(nic.numa_node)
    if nic.hca_type:
        yield f"{folder}/hca_type", nic.hca_type
        yield f"{folder}/board_id", board
        yield f"{folder}/fw_ver", FIRMWARE


def netdev_files(nic: NicKind, *, up: bool, downs: Text) -> Iterator[tuple[str, Text]]:
    """Yield (path, content) for the files of an adapter's network interface, if there is one.

    `downs` is the number of times that the carrier was lost.
    """
    if nic.netdev:
        folder = f"{CLASS}/{nic.device}/device/net/{nic.netdev}"
        yield f"{folder}/operstate", "up" if up else "down"
        yield f"{folder}/dev_port", "0"
        yield f"{folder}/carrier_down_count", downs
        if nic.master:
            yield f"{folder}/master", f"../{nic.master}"
            yield f"{folder}/master/uevent", "DEVTYPE=bond\n" if nic.master.startswith("bond") else ""


def _switch(gpu: int) -> str:
    """Return the path, below sys/devices, of the PCIe switch above a GPU: root complex, root port and upstream port."""
    return f"pci{gpu:04x}:e0/{gpu:04x}:e0:01.0/{gpu:04x}:e1:00.0"
