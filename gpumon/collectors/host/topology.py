"""Read which GPUs are nearest to a network adapter on the PCIe bus, and signs that it is not part of the fabric."""

from __future__ import annotations

import re
from itertools import takewhile

from gpumon.collectors.host.reader import Files, list_names, read_link, read_text
from gpumon.model.bus_id import parse_bus_id
from gpumon.model.infiniband import APART, BOND, DPU, NUMA, SWITCH, Placement

GPUS, DEVICES = "bus/pci/drivers/nvidia", "bus/pci/devices"
_MASTER = re.compile(r"^DEVTYPE=(\w+)", re.MULTILINE)
"""Matches the type of a network interface, such as bond or bridge, in its uevent file. Synthetic ones have no type."""
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_UNKNOWN_NODE = {"", "-1"}
_BLUEFIELD = "MT416"
"""Start of `hca_type` of BlueField DPUs: MT41682, MT41686, MT41692. The number is the PCI device id."""


class PciTopology:
    """The positions of the GPUs on the PCIe bus. A GPU keeps its entry after its driver was unbound."""

    def __init__(self) -> None:
        self._gpus: dict[str, tuple[list[str], str]] = {}

    def refresh(self, files: Files) -> None:
        """Add the GPUs to which the NVIDIA driver is bound."""
        for name in list_names(files, GPUS):  # none if no NVIDIA driver is loaded
            bus_id = parse_bus_id(name)
            if bus_id is not None and bus_id not in self._gpus:
                node = read_text(files, f"{DEVICES}/{name}/numa_node")
                self._gpus[bus_id] = (_bridges(files, f"{DEVICES}/{name}"), node)

    def placement(self, files: Files, folder: str) -> Placement:
        """Return where the adapter with this folder is relative to the GPUs, the nearest GPUs, and its kind."""
        bridges, node = _bridges(files, folder), read_text(files, f"{folder}/device/numa_node")
        depths: dict[str, int] = {}
        """Number of bridges, from the root port on, that are above both the GPU and the adapter, by GPU."""
        for gpu, (above, _) in self._gpus.items():
            shared = takewhile(lambda pair: pair[0] == pair[1], zip(bridges, above, strict=False))
            depths[gpu] = len(list(shared))
        nearest = max(depths.values(), default=0)
        return Placement(
            position=SWITCH if nearest else self._position(node),
            gpus=tuple(sorted(gpu for gpu, depth in depths.items() if depth == nearest > 0)),
            kind=_kind(files, folder),
        )

    def _position(self, node: str) -> str:
        nodes = {node for _, node in self._gpus.values()} - _UNKNOWN_NODE
        if node in _UNKNOWN_NODE or not nodes:
            return ""
        return NUMA if node in nodes else APART


def _bridges(files: Files, path: str) -> list[str]:
    """Return the PCI addresses of the bridges above a device, the root port first.

    Two devices with the same root port are below the same switch, because a root port has one link.
    """
    return _ADDRESS.findall(read_link(files, path))[:-1]


def _kind(files: Files, folder: str) -> str:
    """Return the reason why an adapter is probably not part of the fabric; "" if no reason was found."""
    for netdev in list_names(files, f"{folder}/device/net"):
        master = f"{folder}/device/net/{netdev}/master"
        if files.exists(master):
            kind = _MASTER.search(read_text(files, f"{master}/uevent"))
            if kind is None:
                return "its network interface belongs to a virtual machine's synthetic interface"
            if kind[1] == "bond":
                return BOND
    return DPU if read_text(files, f"{folder}/hca_type").startswith(_BLUEFIELD) else ""
