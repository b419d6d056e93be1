"""Dataclasses that describe GPU products (see sim_products.py) and kinds of nodes (see profiles.py) to simulate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MIB = 1 << 20
BLACKWELL = 10

Clocks = tuple[int, int, int, int]
"""Clock frequencies in MHz: graphics, SM, memory, video (NVML's clock types 0 to 3)."""

PEER_GPU, PEER_SWITCH = 0, 2
HIDDEN_SWITCH = "fffffff:ffff:ff"
"""PCI address that NVML reports for an NVSwitch that is not a PCI function of this host, as on Blackwell and in virtual
machines.
"""
RACK_SWITCH = "FFFFFFFF:FF:FF.0"
"""PCI address that NVML reports for an NVSwitch in the rack but outside the host (GB200)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigProfile:
    """A MIG profile of a product: the size of one kind of GPU instance."""

    name: str
    """NVIDIA's name, such as `3g.40gb`."""
    compute: int
    """Number of compute slices, out of seven."""
    slices: int
    """Number of memory slices, out of eight."""
    starts: tuple[int, ...]
    """Memory slices at which an instance may begin, in the order in which the driver tries them."""
    multiprocessors: int
    memory: int
    """Memory in bytes."""
    copy_engines: int
    decoders: int
    jpeg: int
    ofa: int = 0

    def instance_id(self, start: int) -> int:
        """Return the driver's id of the GPU instance that begins at memory slice `start`.

        Ids form a binary tree: 0 is the whole GPU, 1 and 2 are its halves, 3 to 6 its quarters, 7 to 14 its eighths.
        """
        return 8 // self.slices - 1 + start // self.slices


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Board:
    """A simulated GPU product: its constant properties, and its readings when idle and under full load.

    An optional property is None if the product does not support it.
    """

    product: str
    architecture: int
    """NVML's number of the architecture: 6 Turing, 7 Ampere, 8 Ada, 9 Hopper, 10 Blackwell."""
    compute_capability: tuple[int, int]
    vbios: str
    pci_device: int
    pci_subsystem: int
    pcie_generation: int
    pcie_generation_idle: int
    pcie_width: int = 16

    memory_total: int
    memory_reserved: int
    bar1_total: int

    clocks_idle: Clocks
    clocks_max: Clocks
    performance_state_idle: int = 0

    power_idle: float
    power_full: float
    """Power in watts under full load without a power limit."""
    power_limit: float
    power_limit_min: float
    power_mean: bool
    """True if nvmlDeviceGetPowerUsage reports the mean over one second (from Ampere on, except GA100); False if it
    reports the instantaneous power.
    """
    memory_power_idle: float | None = None
    module_power_idle: float | None = None
    """Power of the whole module (GPU and CPU) in watts while the GPU is idle; None if the product has no CPU."""

    temperature_idle: float
    temperature_full: float
    memory_temperature_idle: float | None = None
    memory_temperature_full: float | None = None
    thresholds: tuple[int, int, int | None, int]
    """Temperature thresholds in degrees Celsius: shutdown, slowdown, memory maximum, GPU maximum (NVML's thresholds 0
    to 3).
    """
    thresholds_reported: bool = True
    """False on Blackwell, where NVML does not report `thresholds`, only `thermal_limits`."""
    thermal_limits: tuple[int, int, int | None, int] | None = None
    """Thresholds from Ada on (T.Limit in nvidia-smi) as margins in degrees below the GPU's temperature limit: shutdown,
    slowdown, memory maximum, GPU maximum. A threshold above that limit has a negative margin. None on older products.
    """

    links: int = 0
    link_speed: int = 0
    """Speed of one NVLink in MB/s in each direction."""
    link_version: int = 0
    """NVML's number of the NVLink version: 4 is NVLink 3, 6 is NVLink 4, 7 is NVLink 5."""
    c2c_links: int = 0
    c2c_speed: int = 0
    """Speed of one chip-to-chip link in MB/s."""
    remap_banks: int | None = None
    """Number of memory banks with spare rows for row remapping. None: the product retires pages instead of remapping
    rows.
    """
    mig_profiles: tuple[MigProfile, ...] = ()
    gpm: bool = False
    event_types: int = 0x1F

    @property
    def nvlink5(self) -> bool:
        return self.architecture >= BLACKWELL and self.links > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricProfile:
    """The values that NVML reports for the NVLink fabric of a healthy simulated node."""

    state: int = 3
    health: int = 0
    """NVML's mask of fabric health. A check whose bits in the mask are 0 is not supported."""
    summary: int = 0
    """NVML's summary of fabric health: 0 is not supported, 1 is healthy."""
    clique: int = 0
    several_nodes: bool = False
    """True for a fabric of several nodes. If False, the cluster uuid is all zeros."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformProfile:
    """The node's position in a rack, as nvmlDeviceGetPlatformInfo reports it.

    `slot` and `tray` are None if the platform does not report them.
    """

    chassis: str = ""
    slot: int | None = None
    tray: int | None = None
    host: int = 1
    modules: tuple[int, ...]
    """NVML's module id of each GPU, in the order of the GPUs in the profile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The InfiniBand or RoCE devices of a simulated node. All devices are of the same kind and have one port each."""

    count: int
    gigabits: float
    """Rate of a port in Gbit/s in each direction."""
    generation: str
    """InfiniBand generation that sysfs shows after the rate: EDR, HDR or NDR."""
    link_layer: str = "InfiniBand"
    switched: bool = True
    """True if each port is below the PCIe switch of a GPU; False if it only shares the NUMA node with GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Profile:
    """A kind of node that can be simulated: its driver, GPUs, links, ports and services.

    All GPUs of a node are of the same product.
    """

    name: str
    driver: str
    nvml: str
    cuda: int
    """CUDA version in NVML's format: 13000 for 13.0."""
    note: str
    """The special features of this profile, as text for the documentation."""
    board: Board
    bus_ids: tuple[str, ...]
    switches: Mapping[str, int] = field(default_factory=dict)
    """Number of NVLinks from each GPU to each NVSwitch, by PCI address of the switch. If empty, the links lead to the
    GPUs in `bridges`, or to NVSwitches for which NVML reports HIDDEN_SWITCH or RACK_SWITCH.
    """
    bridges: Mapping[int, int] = field(default_factory=dict)
    """For boards that an NVLink bridge connects: maps the index of each GPU to the index of the GPU at the other end of
    all its NVLinks.
    """
    links_active: bool = True
    fabric: FabricProfile | None = None
    platform: PlatformProfile | None = None
    numa_nodes: tuple[int, ...] = ()
    """NUMA node of each GPU's memory on hosts where GPU memory is also system memory (Grace); otherwise empty."""
    guest: bool = False
    """True for a virtual machine with passed-through GPUs."""
    without: tuple[str, ...] = ()
    """Names or prefixes of quantities (quantities.py) that the product supports on other nodes but not on this one."""
    mig: tuple[tuple[str, ...] | None, ...] = ()
    """For each GPU, the names of the MIG profiles of its GPU instances, or None if MIG is disabled on that GPU. If
    empty, MIG is disabled on all GPUs.
    """
    ports: Ports | None = None
    services: tuple[str, ...] = ()
    """Services that are installed and running: `fabric_manager`, `imex`, both or none."""

    def peer(self, gpu: int, link: int) -> tuple[int, str]:
        """Return NVML's device type and the PCI address of the device at the other end of a GPU's NVLink."""
        if gpu in self.bridges:
            return PEER_GPU, self.bus_ids[self.bridges[gpu]]
        for address, links in self.switches.items():
            if link < links:
                return PEER_SWITCH, address
            link -= links
        rack = self.fabric is not None and self.fabric.several_nodes
        return PEER_SWITCH, RACK_SWITCH if rack else HIDDEN_SWITCH
