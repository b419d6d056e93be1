"""The shapes of the tables in boards.py and profiles.py: a simulated node. Nothing here loads a driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MIB = 1 << 20
BLACKWELL = 10

Clocks = tuple[int, int, int, int]
"""MHz of graphics, sm, memory, video: NVML's clock types 0 to 3."""

PEER_GPU, PEER_SWITCH = 0, 2
HIDDEN_SWITCH = "fffffff:ffff:ff"
"""Address of an NVSwitch that is no PCI function of this host: so from Blackwell on, and in guests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigProfile:
    """A size that a GPU instance can have."""

    name: str
    """As NVIDIA names it: `3g.40gb`."""
    compute: int
    """Compute slices, of the seven."""
    slices: int
    """Memory slices, of the eight."""
    starts: tuple[int, ...]
    """Memory slices at which it may begin, in the order in which the driver tries them."""
    multiprocessors: int
    memory: int
    """Bytes."""
    copy_engines: int
    decoders: int
    jpeg: int
    ofa: int = 0

    def instance_id(self, start: int) -> int:
        """Number of a GPU instance: that of its place in the tree of halves, quarters and eighths."""
        return 8 // self.slices - 1 + start // self.slices


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Board:
    """One kind of GPU. None is what it does not support."""

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
    """What a full load would draw were it not for the limit."""
    power_limit: float
    power_limit_min: float
    power_mean: bool
    """Ampere and later but GA100: the driver knows the mean over a second. Else power is that of the moment."""
    memory_power_idle: float | None = None
    module_power_idle: float | None = None
    """Of the whole module, CPU included."""

    temperature_idle: float
    temperature_full: float
    memory_temperature_idle: float | None = None
    memory_temperature_full: float | None = None
    thresholds: tuple[int, int, int | None, int]
    """Celsius: shutdown, slowdown, highest of memory, highest of the GPU; NVML's thresholds 0 to 3."""
    thresholds_told: bool = True
    """Blackwell: NVML tells the next line only."""
    thermal_limits: tuple[int, int, int | None, int] | None = None
    """Ada and later: degrees from the limit of the hottest spot, so not the above: shutdown, slowdown, memory, GPU."""

    links: int = 0
    link_speed: int = 0
    """MB/s and direction."""
    link_version: int = 0
    """NVML's number for it: 4 is NVLink 3, 6 is NVLink 4, 7 is NVLink 5."""
    c2c_links: int = 0
    c2c_speed: int = 0
    """MB/s."""
    remap_banks: int | None = None
    """Banks with all of their spare rows. None: pages are retired instead."""
    mig_profiles: tuple[MigProfile, ...] = ()
    gpm: bool = False
    event_types: int = 0x1F

    @property
    def nvlink5(self) -> bool:
        return self.architecture >= BLACKWELL and self.links > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """What the GPUs know of the NVLink fabric when all is well."""

    state: int = 3
    health: int = 0
    """NVML's mask, in which 0 is "not supported"."""
    summary: int = 0
    """0 not supported, 1 healthy."""
    clique: int = 0
    several_nodes: bool = False
    """Else the uuid of the cluster is all zeros."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """Where in a rack the node is. None is what this platform does not tell."""

    chassis: str = ""
    slot: int | None = None
    tray: int | None = None
    host: int = 1
    modules: tuple[int, ...]
    """By GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The node's InfiniBand or RoCE devices, all alike and with one port each."""

    count: int
    gigabits: float
    """A second, each way."""
    generation: str
    """As sysfs has it: EDR, HDR, NDR."""
    link_layer: str = "InfiniBand"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Profile:
    """One kind of node, all of whose GPUs are alike."""

    name: str
    driver: str
    nvml: str
    cuda: int
    """As NVML gives it: 13000 for 13.0."""
    note: str
    """What is worth knowing of it, for the page on the simulation."""
    board: Board
    bus_ids: tuple[str, ...]
    switches: Mapping[str, int] = field(default_factory=dict)
    """NVSwitches by PCI address, and how many links of each GPU lead there. Without any, links lead to hidden ones."""
    bridges: Mapping[int, int] = field(default_factory=dict)
    """By GPU, the one that all of its links lead to."""
    links_active: bool = True
    fabric: Fabric | None = None
    platform: Platform | None = None
    numa_nodes: tuple[int, ...] = ()
    """By GPU, where its memory is the host's as well."""
    guest: bool = False
    """A virtual machine to which the GPUs were passed through."""
    without: tuple[str, ...] = ()
    """Quantities that such GPUs have elsewhere, and not on this node."""
    mig: tuple[tuple[str, ...] | None, ...] = ()
    """By GPU, the names of its MIG profiles; None where MIG is off."""
    ports: Ports | None = None
    services: tuple[str, ...] = ()
    """Those that are installed and run: fabric_manager, imex."""

    def peer(self, gpu: int, link: int) -> tuple[int, str]:
        """What a link leads to: NVML's type, and the PCI address."""
        if gpu in self.bridges:
            return PEER_GPU, self.bus_ids[self.bridges[gpu]]
        for address, links in self.switches.items():
            if link < links:
                return PEER_SWITCH, address
            link -= links
        return PEER_SWITCH, HIDDEN_SWITCH
