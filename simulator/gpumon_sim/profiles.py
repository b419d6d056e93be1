"""TABLE: the kinds of nodes that can be simulated. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpumon.model.orders import SimulationError
from gpumon_sim.board import FabricProfile, PlatformProfile, Ports, Profile
from gpumon_sim.sim_products import A100_SXM, B200_SXM, GB200, H100_PCIE, H100_SXM, H200_SXM, L40S, T4


def _addresses(*places: str) -> tuple[str, ...]:
    """Return PCI addresses in NVML's format. Each of `places` is a bus, or `domain:bus`, in hexadecimal."""
    return tuple(f"{place.rpartition(':')[0] or '0':0>8}:{place[-2:]}:00.0" for place in places)


def _switches(*links: int) -> dict[str, int]:
    """Return the number of NVLinks from each GPU to each NVSwitch (`links`), by PCI address of the switch."""
    return {f"00000000:{5 + n:02X}:00.0": count for n, count in enumerate(links)}


_NDR = Ports(count=8, gigabits=400, generation="NDR")

_HGX = ("1B", "43", "52", "61", "9D", "C3", "D1", "DF")

H100X8 = Profile(
    name="h100x8",
    note="supports everything except fans",
    driver="580.173.02",
    nvml="13.580.173.02",
    cuda=13000,
    board=H100_SXM,
    bus_ids=_addresses(*_HGX),
    switches=_switches(5, 4, 4, 5),
    fabric=FabricProfile(),
    platform=PlatformProfile(slot=0, tray=0, modules=tuple(range(1, 17))),  # no serial of a chassis: as a real H100
    ports=_NDR,
    services=("fabric_manager",),
)

H200X8 = replace(
    H100X8,
    name="h200x8",
    note="a newer driver; more memory",
    driver="610.43.02",
    nvml="13.610.43.02",
    cuda=13030,
    board=H200_SXM,
    bus_ids=_addresses("03", "23", "43", "63", "83", "A3", "C3", "E3"),
)

B200X8 = Profile(
    name="b200x8",
    note="NVLink 5 with its own counters; NVSwitches are not PCI functions; NVML reports no temperature thresholds",
    driver="580.105.08",
    nvml="13.580.105.08",
    cuda=13000,
    board=B200_SXM,
    bus_ids=_addresses("1B", "29", "45", "4E", "8F", "9B", "B7", "CF"),
    fabric=FabricProfile(health=2 << 6, summary=1),
    platform=PlatformProfile(modules=(1, 3, 2, 4, 6, 8, 5, 7)),
    ports=_NDR,
    services=("fabric_manager",),
)

GB200X4 = Profile(
    name="gb200x4",
    note="chip-to-chip links; a place in a rack and in a multi-node fabric; module power",
    driver="580.173.02",
    nvml="13.580.173.02",
    cuda=13000,
    board=GB200,
    bus_ids=_addresses("8:01", "9:01", "18:01", "19:01"),
    fabric=FabricProfile(health=0b10101010, summary=1, clique=2, several_nodes=True),
    platform=PlatformProfile(chassis="1820000000001", slot=14, tray=4, modules=(2, 1, 4, 3)),
    numa_nodes=(2, 10, 18, 26),
    ports=replace(_NDR, count=4),
    services=("imex",),
)

A100X8 = Profile(
    name="a100x8",
    note="three fields have other ids; no average power, no thermal margin",
    driver="575.57.08",
    nvml="12.575.57.08",
    cuda=12090,
    board=A100_SXM,
    bus_ids=_addresses("07", "0F", "47", "4E", "87", "90", "B7", "BD"),
    switches=_switches(2, 2, 2, 2, 2, 2),
    ports=Ports(count=8, gigabits=200, generation="HDR"),
    services=("fabric_manager",),
)

L40SX4 = Profile(
    name="l40sx4",
    note="no NVLink, MIG, GPM, fan or memory temperature",
    driver="595.80",
    nvml="13.595.80",
    cuda=13020,
    board=L40S,
    bus_ids=_addresses("01", "41", "81", "C1"),
    ports=Ports(count=2, gigabits=100, generation="EDR", link_layer="Ethernet", switched=False),
)

H100PCIEX2 = Profile(
    name="h100pciex2",
    note="two boards with a bridge, no NVSwitch, no fabric",
    driver="550.163.01",
    nvml="12.550.163.01",
    cuda=12040,
    board=H100_PCIE,
    bus_ids=_addresses("17", "CA"),
    bridges={0: 1, 1: 0},
    fabric=FabricProfile(state=0),
)

T4X1 = Profile(
    name="t4x1",
    note="an old driver without some functions; no row remapping, no memory temperature",
    driver="535.183.01",
    nvml="12.535.183.01",
    cuda=12020,
    board=T4,
    bus_ids=("00000000:00:1E.0",),
)

H100X1 = replace(
    H100X8,
    name="h100x1",
    note="one GPU: expected to be one of four, unless `gpus.expected_count` is 1",
    bus_ids=H100X8.bus_ids[:1],
)
H100X16 = replace(
    H100X8, name="h100x16", note="sixteen GPUs", bus_ids=_addresses(*(f"{8 + 14 * n:02X}" for n in range(16)))
)

_HALVES = ("3g.40gb", "3g.40gb")
_MIXED = ("3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb")
H100MIGX8 = replace(
    H100X8,
    name="h100migx8",
    note="MIG enabled: two halves each on four GPUs, a mixture on two, seven instances on one, none on the last",
    driver="590.48.01",
    nvml="13.590.48.01",
    cuda=13010,
    mig=(_HALVES, _HALVES, _HALVES, _HALVES, _MIXED, _MIXED, ("1g.10gb",) * 7, ()),
)

H100GUESTX2 = replace(
    H100X8,
    name="h100guestx2",
    note="a guest with two of the host's GPUs: links down, no energy, no PCIe errors, no GPM",
    driver="570.148.08",
    nvml="12.570.148.08",
    cuda=12080,
    bus_ids=("00000000:00:05.0", "00000000:00:06.0"),
    switches={},
    links_active=False,
    fabric=FabricProfile(state=0),
    guest=True,
    ports=None,
    services=(),
    without=("energy", "pcie_replays", "pcie_errors"),
)

PROFILES: Mapping[str, Profile] = {
    profile.name: profile
    for profile in (
        H100X8,
        A100X8,
        T4X1,
        H100X1,
        H100X16,
        H200X8,
        B200X8,
        GB200X4,
        L40SX4,
        H100PCIEX2,
        H100MIGX8,
        H100GUESTX2,
    )
}


def named(name: str) -> Profile:
    """Return the profile with this name. Raise SimulationError if there is none."""
    if name not in PROFILES:
        raise SimulationError(f"no profile {name!r} to simulate: choose one of {', '.join(PROFILES)}")
    return PROFILES[name]
