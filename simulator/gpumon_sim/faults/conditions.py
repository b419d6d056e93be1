"""Conditions for rows of the table of faults: on which profiles a fault can happen."""

from __future__ import annotations

from gpumon_sim.board import BLACKWELL, Profile

ADA = 8
"""NVML's architecture number; boards after it count errors of PCIe by their kind."""
MANY = 8
"""Number of GPUs from which slow calls make a poll slow."""
UNSUPPORTED = 0
"""Fabric state of a board without a fabric, which has no registration that could fail."""


def anywhere(_: Profile) -> bool:
    return True


def several(profile: Profile) -> bool:
    return len(profile.bus_ids) > 1


def has_nvlinks(profile: Profile) -> bool:
    """Return whether NVLinks are up and in use."""
    return bool(profile.board.links) and profile.links_active and not profile.mig


def nvlink4(profile: Profile) -> bool:
    return has_nvlinks(profile) and not profile.board.nvlink5


def nvlink5(profile: Profile) -> bool:
    return has_nvlinks(profile) and profile.board.nvlink5


def fabric(profile: Profile) -> bool:
    return profile.fabric is not None and profile.fabric.state != UNSUPPORTED and not profile.guest


def fabric_health(profile: Profile) -> bool:
    """Return whether the driver reports the health of the fabric."""
    return fabric(profile) and profile.fabric is not None and bool(profile.fabric.health)


def has_fabric_manager(profile: Profile) -> bool:
    return "fabric_manager" in profile.services


def imex(profile: Profile) -> bool:
    return "imex" in profile.services


def whole(profile: Profile) -> bool:
    """Return whether MIG is disabled. Partitioned GPUs have no volatile ECC counts, utilization or clocks."""
    return not profile.mig


def remaps(profile: Profile) -> bool:
    return profile.board.remap_banks is not None and not profile.mig


def retires(profile: Profile) -> bool:
    return profile.board.remap_banks is None


def has_recovery_action(profile: Profile) -> bool:
    """Return whether the driver reports a recovery action."""
    return int(profile.driver.partition(".")[0]) >= 570


def blackwell(profile: Profile) -> bool:
    return profile.board.architecture >= BLACKWELL


def counts_pcie_errors(profile: Profile) -> bool:
    return profile.board.architecture > ADA and not profile.guest


def has_ports(profile: Profile) -> bool:
    return profile.ports is not None


def hot_memory(profile: Profile) -> bool:
    return profile.board.memory_temperature_idle is not None and profile.board.thresholds_reported
