"""TABLE: which simulated nodes lack a metric of a GPU, and why. What is not listed here has to be there.

A test holds it against what is read: a new row and a new profile fail until they are decided here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

TURING, AMPERE, ADA = ("t4",), ("a100",), ("l40s",)
BLACKWELL = ("b200", "gb200")
HOPPER = ("h100", "h200", "h100pcie", "h100mig", "h100guest")
BEFORE_HOPPER = (*TURING, *AMPERE, *ADA)
ALL = (*BEFORE_HOPPER, *HOPPER, *BLACKWELL)


@dataclass(frozen=True, slots=True)
class Absence:
    """One decision."""

    metrics: tuple[str, ...]
    """Without their common prefix; `*` is any text."""
    kinds: tuple[str, ...]
    """Profiles without their number of GPUs."""
    reason: str


def _but(*kinds: str) -> tuple[str, ...]:
    return tuple(one for one in ALL if one not in kinds)


ABSENCES = (
    Absence(("gpu_recovery_action",), ("t4", "h100pcie"), "driver 570"),
    Absence(("gpu_pcie_receive_bytes_total", "gpu_pcie_transmit_bytes_total"), ("t4", "h100pcie"), "driver 555"),
    Absence(("gpu_thermal_margin_celsius",), ("t4", "h100pcie"), "driver 570"),
    Absence(("gpu_thermal_margin_celsius",), AMPERE, "a margin is known from Ada on"),
    Absence(
        ("gpu_utilization_ratio", "gpu_memory_utilization_ratio", "gpu_busy_seconds_total"),
        ("h100mig",),
        "NVML does not say with MIG on: see the instances",
    ),
    Absence(("gpu_*coder_utilization_ratio", "gpu_ecc_errors_total"), ("h100mig",), "NVML does not say with MIG on"),
    Absence(("gpu_jpeg_utilization_ratio", "gpu_ofa_utilization_ratio"), ("h100mig",), "NVML does not say with MIG on"),
    Absence(("gpu_jpeg_utilization_ratio", "gpu_ofa_utilization_ratio"), TURING, "Ampere and later"),
    Absence(("gpu_*_active_ratio", "gpu_sm_occupancy_ratio"), BEFORE_HOPPER, "performance monitoring: from Hopper on"),
    Absence(("gpu_*_active_ratio", "gpu_sm_occupancy_ratio"), ("h100guest",), "not for a guest"),
    Absence(("gpu_*_active_seconds_total",), (*BEFORE_HOPPER, "h100guest"), "integral of what is absent"),
    Absence(("gpu_pcie_errors_total",), BEFORE_HOPPER, "Hopper and later"),
    Absence(("gpu_pcie_errors_total", "gpu_pcie_replays_total"), ("h100guest",), "the bus is the host's"),
    Absence(("gpu_memory_temperature_celsius",), ("t4", "l40s"), "no sensor in GDDR6"),
    Absence(("gpu_memory_temperature_max_celsius",), ("t4", "l40s"), "no sensor in GDDR6"),
    Absence(
        ("gpu_memory_temperature_max_celsius", "gpu_temperature_slowdown_celsius", "gpu_temperature_shutdown_celsius"),
        BLACKWELL,
        "thresholds went: the margin is what there is",
    ),
    Absence(("gpu_fan_speed_ratio",), ALL, "passive boards: the fans are the chassis'"),
    Absence(("gpu_module_power_watts",), _but("gb200"), "Grace hosts"),
    Absence(("gpu_memory_power_watts",), BEFORE_HOPPER, "Hopper and later"),
    Absence(
        ("gpu_rows_remapped_total", "gpu_row_remap_*", "gpu_ecc_sram_threshold_exceeded"), TURING, "Ampere and later"
    ),
    Absence(("gpu_rows_remapped_total", "gpu_row_remap_*"), ("h100mig",), "with instances, NVML does not say"),
    Absence(("gpu_gsp",), TURING, "the driver runs without this firmware"),
    Absence(("gpu_retired_pages", "gpu_retired_pages_pending"), _but("t4"), "before Ampere"),
    Absence(("gpu_xid_last_timestamp_seconds",), ALL, "no Xid has been seen"),
    Absence(("gpu_process_memory_bytes",), ALL, "only when asked for"),
    Absence(("gpu_mig_mode", "gpu_mig_mode_pending"), ("t4", "l40s"), "boards without MIG"),
    Absence(("mig_*",), _but("h100mig"), "MIG is off"),
    Absence(("gpu_nvlink*", "nvlink_*"), ("t4", "l40s"), "boards without NVLink"),
    Absence(
        ("gpu_nvlinks_active", "gpu_nvlink_speed_bytes_per_second", "nvlink_up", "nvlink_peer_*"),
        ("h100mig", "h100guest"),
        "nobody can say that they should be up",
    ),
    Absence(("nvlink_recoveries_total", "nvlink_bit_error_ratio"), (*AMPERE, *HOPPER), "Blackwell and later"),
    Absence(("nvlink_peer_peer",), BLACKWELL, "its switches are on no bus of this host"),
    Absence(("fabric_*",), BEFORE_HOPPER, "Hopper and later"),
    Absence(("fabric_status",), ("h100pcie", "h100guest"), "not in a fabric"),
    Absence(("fabric_health", "fabric_health_summary"), HOPPER, "these GPUs support no check"),
    Absence(("fabric_cluster_uuid", "fabric_clique_id"), (*HOPPER, "b200"), "a fabric of one node"),
    Absence(("platform_*",), _but("gb200"), "not in a rack that tells"),
    Absence(("c2c_link_up",), _but("gb200"), "Grace hosts"),
)


def absent(kind: str, metrics: Iterable[str]) -> set[str]:
    """Those of these metrics that a kind of node is decided to lack."""
    patterns = [f"gpumon_{metric}" for one in ABSENCES if kind in one.kinds for metric in one.metrics]
    return {metric for metric in metrics if any(fnmatchcase(metric, pattern) for pattern in patterns)}
