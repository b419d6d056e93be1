"""TABLE: the nodes that can be simulated. Plain data: nothing here loads a driver.

Figures are those of published `nvidia-smi -q` output and of captures of the nvidia_gpu_exporter project; where a board
is sold in several variants, the commoner one. What a full load would draw and the temperatures under load are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

MIB = 1 << 20

Clocks = tuple[int, int, int, int]
"""MHz of graphics, sm, memory, video: NVML's clock types 0 to 3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One kind of node, all of whose GPUs are alike. None is what these GPUs do not support."""

    name: str
    driver: str
    nvml: str
    cuda: int
    """As NVML gives it: 13000 for 13.0."""
    bus_ids: tuple[str, ...]

    product: str
    architecture: int
    """6 Turing, 7 Ampere, 9 Hopper."""
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

    temperature_idle: float
    temperature_full: float
    memory_temperature_idle: float | None = None
    memory_temperature_full: float | None = None
    thresholds: tuple[int, int, int | None, int]
    """Celsius: shutdown, slowdown, highest of memory, highest of the GPU; NVML's thresholds 0 to 3."""
    thermal_limits: tuple[int, int, int, int] | None = None
    """Hopper: degrees from the limit of the hottest spot, so not the above: shutdown, slowdown, memory, GPU."""

    links: int = 0
    link_speed: int = 0
    """MB/s and direction."""
    link_version: int = 0
    mig: bool = False
    row_remap: bool = False
    event_types: int = 0x1F


H100X8 = Profile(
    name="h100x8",
    driver="580.173.02",
    nvml="13.580.173.02",
    cuda=13000,
    bus_ids=tuple(f"00000000:{bus}:00.0" for bus in ("1B", "43", "52", "61", "9D", "C3", "D1", "DF")),
    product="NVIDIA H100 80GB HBM3",
    architecture=9,
    compute_capability=(9, 0),
    vbios="96.00.A5.00.01",
    pci_device=0x233010DE,
    pci_subsystem=0x16C110DE,
    pcie_generation=5,
    pcie_generation_idle=5,
    memory_total=85520809984,
    memory_reserved=479 * MIB,
    bar1_total=131072 * MIB,
    clocks_idle=(345, 345, 2619, 765),
    clocks_max=(1980, 1980, 2619, 1545),
    power_idle=70.0,
    power_full=725.0,
    power_limit=700.0,
    power_limit_min=200.0,
    power_mean=True,
    memory_power_idle=43.0,
    temperature_idle=34.0,
    temperature_full=67.0,
    memory_temperature_idle=43.0,
    memory_temperature_full=76.0,
    thresholds=(92, 89, 95, 87),
    thermal_limits=(-8, -2, 0, 0),
    links=18,
    link_speed=26562,
    link_version=6,
    mig=True,
    row_remap=True,
    event_types=0x11F,
)

A100X8 = Profile(
    name="a100x8",
    driver="575.57.08",
    nvml="12.575.57.08",
    cuda=12090,
    bus_ids=tuple(f"00000000:{bus}:00.0" for bus in ("07", "0F", "47", "4E", "87", "90", "B7", "BD")),
    product="NVIDIA A100-SXM4-80GB",
    architecture=7,
    compute_capability=(8, 0),
    vbios="92.00.9E.00.02",
    pci_device=0x20B210DE,
    pci_subsystem=0x147F10DE,
    pcie_generation=4,
    pcie_generation_idle=4,
    memory_total=81920 * MIB,
    memory_reserved=763 * MIB,
    bar1_total=131072 * MIB,
    clocks_idle=(210, 210, 1593, 585),
    clocks_max=(1410, 1410, 1593, 1290),
    power_idle=60.0,
    power_full=415.0,
    power_limit=400.0,
    power_limit_min=100.0,
    power_mean=False,
    temperature_idle=27.0,
    temperature_full=62.0,
    memory_temperature_idle=41.0,
    memory_temperature_full=74.0,
    thresholds=(92, 89, 95, 85),
    links=12,
    link_speed=25000,
    link_version=4,
    mig=True,
    row_remap=True,
    event_types=0x11F,
)

T4X1 = Profile(
    name="t4x1",
    driver="535.183.01",
    nvml="12.535.183.01",
    cuda=12020,
    bus_ids=("00000000:00:1E.0",),
    product="Tesla T4",
    architecture=6,
    compute_capability=(7, 5),
    vbios="90.04.38.00.03",
    pci_device=0x1EB810DE,
    pci_subsystem=0x12A210DE,
    pcie_generation=3,
    pcie_generation_idle=1,
    memory_total=15360 * MIB,
    memory_reserved=393 * MIB,
    bar1_total=256 * MIB,
    clocks_idle=(300, 300, 405, 540),
    clocks_max=(1590, 1590, 5001, 1470),
    performance_state_idle=8,
    power_idle=14.0,
    power_full=73.0,
    power_limit=70.0,
    power_limit_min=60.0,
    power_mean=False,
    temperature_idle=38.0,
    temperature_full=74.0,
    thresholds=(96, 93, None, 85),
)

H100X1 = replace(H100X8, name="h100x1", bus_ids=H100X8.bus_ids[:1])
H100X16 = replace(H100X8, name="h100x16", bus_ids=tuple(f"00000000:{8 + 14 * n:02X}:00.0" for n in range(16)))

PROFILES: Mapping[str, Profile] = {p.name: p for p in (H100X8, A100X8, T4X1, H100X1, H100X16)}
