"""Types of the tables in sim_products.py and profiles.py. Nothing here loads a driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MIB = 1 << 20
BLACKWELL = 10

Clocks = tuple[int, int, int, int]
"""MHz of graphics, SM, memory and video: NVML's clock types 0 to 3."""

PEER_GPU, PEER_SWITCH = 0, 2
HIDDEN_SWITCH = "fffffff:ffff:ff"
"""Address of an NVSwitch that is not a PCI function of this host, as from Blackwell on and in guests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigProfile:
    """A size of GPU instances."""

    name: str
    """NVIDIA's name, such as `3g.40gb`."""
    compute: int
    """Compute slices, of seven."""
    slices: int
    """Memory slices, of eight."""
    starts: tuple[int, ...]
    """Memory slices at which an instance may start, in the order that the driver tries them."""
    multiprocessors: int
    memory: int
    """Memory in bytes."""
    copy_engines: int
    decoders: int
    jpeg: int
    ofa: int = 0

    def instance_id(self, start: int) -> int:
        """Return the id of a GPU instance: its place in the tree of halves, quarters and eighths."""
        return 8 // self.slices - 1 + start // self.slices


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Board:
    """A GPU product. None is what it does not support."""

    product: str
    architecture: int
    """6 Turing, 7 Ampere, 8 Ada, 9 Hopper, 10 Blackwell."""
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
    """From Ampere on, except GA100, power is the mean over one second; otherwise it is the current value."""
    memory_power_idle: float | None = None
    module_power_idle: float | None = None
    """Power of the whole module including the CPU, in watts."""

    temperature_idle: float
    temperature_full: float
    memory_temperature_idle: float | None = None
    memory_temperature_full: float | None = None
    thresholds: tuple[int, int, int | None, int]
    """Thresholds in Celsius: shutdown, slowdown, maximum of memory, maximum of the GPU; NVML's thresholds 0 to 3."""
    thresholds_reported: bool = True
    """Blackwell: NVML only provides the next row."""
    thermal_limits: tuple[int, int, int | None, int] | None = None
    """From Ada on: degrees below the hotspot limit for shutdown, slowdown, memory and GPU, so not the values above."""

    links: int = 0
    link_speed: int = 0
    """MB/s in each direction."""
    link_version: int = 0
    """NVML's version number: 4 is NVLink 3, 6 is NVLink 4, 7 is NVLink 5."""
    c2c_links: int = 0
    c2c_speed: int = 0
    """MB/s."""
    remap_banks: int | None = None
    """Banks with all spare rows free. None: pages are retired instead of rows remapped."""
    mig_profiles: tuple[MigProfile, ...] = ()
    gpm: bool = False
    event_types: int = 0x1F

    @property
    def nvlink5(self) -> bool:
        return self.architecture >= BLACKWELL and self.links > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricProfile:
    """The state of a healthy NVLink fabric."""

    state: int = 3
    health: int = 0
    """NVML's mask, in which 0 means "not supported"."""
    summary: int = 0
    """0 is not supported, 1 healthy."""
    clique: int = 0
    several_nodes: bool = False
    """If False, the cluster uuid is all zeros."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformProfile:
    """The node's place in a rack. None is what this platform does not report."""

    chassis: str = ""
    slot: int | None = None
    tray: int | None = None
    host: int = 1
    modules: tuple[int, ...]
    """Slot by GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The node's InfiniBand or RoCE devices, all equal, with one port each."""

    count: int
    gigabits: float
    """Gbit/s in each direction."""
    generation: str
    """Name in sysfs: EDR, HDR or NDR."""
    link_layer: str = "InfiniBand"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Profile:
    """A kind of node. All its GPUs are equal."""

    name: str
    driver: str
    nvml: str
    cuda: int
    """NVML's format: 13000 for 13.0."""
    note: str
    """A note for the documentation."""
    board: Board
    bus_ids: tuple[str, ...]
    switches: Mapping[str, int] = field(default_factory=dict)
    """NVSwitches by PCI address, with the number of links from each GPU. Without any, the links lead to hidden
    switches.
    """
    bridges: Mapping[int, int] = field(default_factory=dict)
    """The peer to which all links of a GPU lead, by GPU."""
    links_active: bool = True
    fabric: FabricProfile | None = None
    platform: PlatformProfile | None = None
    numa_nodes: tuple[int, ...] = ()
    """CPU memory by GPU, if the GPU's memory is host memory too."""
    guest: bool = False
    """True for a virtual machine with passed-through GPUs."""
    without: tuple[str, ...] = ()
    """Quantities that this product supports elsewhere but not on this node."""
    mig: tuple[tuple[str, ...] | None, ...] = ()
    """MIG profiles by GPU; None if MIG is disabled."""
    ports: Ports | None = None
    services: tuple[str, ...] = ()
    """Services that are installed and running: fabric_manager, imex."""

    def peer(self, gpu: int, link: int) -> tuple[int, str]:
        """Return the peer of a link: NVML's device type and the PCI address."""
        if gpu in self.bridges:
            return PEER_GPU, self.bus_ids[self.bridges[gpu]]
        for address, links in self.switches.items():
            if link < links:
                return PEER_SWITCH, address
            link -= links
        return PEER_SWITCH, HIDDEN_SWITCH
