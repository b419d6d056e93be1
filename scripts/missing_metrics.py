"""TABLE: the GPU metrics that simulated nodes lack, and why. All others must be present.

A test compares it with the readings, so a new row or profile fails until it is listed here.
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
class MissingMetrics:
    """Metrics that some kinds of node lack."""

    metrics: tuple[str, ...]
    """Names without the prefix gpumon_; `*` matches any text."""
    kinds: tuple[str, ...]
    """Profiles without their number of GPUs."""
    reason: str


def _but(*kinds: str) -> tuple[str, ...]:
    return tuple(kind for kind in ALL if kind not in kinds)


MISSING_METRICS = (
    MissingMetrics(("gpu_allocation_*",), ALL, "no source on the simulated node names an owner"),
    MissingMetrics(("gpu_recovery_action",), ("t4", "h100pcie"), "driver 570"),
    MissingMetrics(("gpu_thermal_margin_celsius",), ("t4", "h100pcie"), "driver 570"),
    MissingMetrics(("gpu_thermal_margin_celsius",), AMPERE, "Ada and later"),
    MissingMetrics(("gpu_thermal_margin_slowdown_celsius",), (*TURING, *AMPERE), "Ada and later"),
    MissingMetrics(
        ("gpu_utilization_ratio", "gpu_memory_utilization_ratio", "gpu_busy_seconds_total"),
        ("h100mig",),
        "NVML reports it per instance if MIG is on",
    ),
    MissingMetrics(
        ("gpu_*coder_utilization_ratio", "gpu_ecc_errors_total"), ("h100mig",), "not reported by NVML if MIG is on"
    ),
    MissingMetrics(
        ("gpu_jpeg_utilization_ratio", "gpu_ofa_utilization_ratio"), ("h100mig",), "not reported by NVML if MIG is on"
    ),
    MissingMetrics(("gpu_jpeg_utilization_ratio", "gpu_ofa_utilization_ratio"), TURING, "Ampere and later"),
    MissingMetrics(("gpu_*_active_ratio", "gpu_sm_occupancy_ratio"), BEFORE_HOPPER, "GPM: Hopper and later"),
    MissingMetrics(("gpu_*_active_ratio", "gpu_sm_occupancy_ratio"), ("h100guest",), "not available to a guest"),
    MissingMetrics(("gpu_*_active_seconds_total",), (*BEFORE_HOPPER, "h100guest"), "integral of a missing metric"),
    MissingMetrics(("gpu_pcie_*_bytes_*",), BEFORE_HOPPER, "GPM: Hopper and later"),
    MissingMetrics(("gpu_pcie_*_bytes_*",), ("h100guest",), "not available to a guest"),
    MissingMetrics(("gpu_pcie_errors_total",), BEFORE_HOPPER, "Hopper and later"),
    MissingMetrics(("gpu_pcie_errors_total", "gpu_pcie_replays_total"), ("h100guest",), "the bus is the host's"),
    MissingMetrics(("gpu_memory_temperature_celsius",), ("t4", "l40s"), "no sensor in GDDR6"),
    MissingMetrics(("gpu_memory_temperature_max_celsius",), ("t4", "l40s"), "no sensor in GDDR6"),
    MissingMetrics(
        ("gpu_memory_temperature_max_celsius", "gpu_temperature_slowdown_celsius", "gpu_temperature_shutdown_celsius"),
        BLACKWELL,
        "replaced by the margin",
    ),
    MissingMetrics(("gpu_fan_speed_ratio",), ALL, "passive boards: fans are part of the chassis"),
    MissingMetrics(("gpu_module_power_watts",), _but("gb200"), "Grace hosts"),
    MissingMetrics(("gpu_memory_power_watts",), BEFORE_HOPPER, "Hopper and later"),
    MissingMetrics(
        ("gpu_rows_remapped_total", "gpu_row_remap_*", "gpu_ecc_sram_threshold_exceeded"), TURING, "Ampere and later"
    ),
    MissingMetrics(("gpu_rows_remapped_total", "gpu_row_remap_*"), ("h100mig",), "not reported by NVML if MIG is on"),
    MissingMetrics(("gpu_repair_pending",), ("t4", "a100", "h100pcie", "h100guest"), "driver 580"),
    MissingMetrics(("gpu_memory_unrepairable",), _but("h100", "h200", "h100mig", "gb200"), "Hopper, driver 580.159"),
    MissingMetrics(("gpu_bank_groups_without_spares",), ALL, "driver 615"),
    MissingMetrics(("gpu_gsp",), TURING, "the driver runs without this firmware"),
    MissingMetrics(("gpu_retired_pages", "gpu_retired_pages_pending"), _but("t4"), "before Ampere"),
    MissingMetrics(("gpu_xid_last_timestamp_seconds",), ALL, "no Xid has occurred"),
    MissingMetrics(("health_check_*",), ALL, "no verdict"),
    MissingMetrics(("gpu_process_memory_bytes",), ALL, "only with processes.max_per_gpu"),
    MissingMetrics(("gpu_mig_mode", "gpu_mig_mode_pending"), ("t4", "l40s"), "boards without MIG"),
    MissingMetrics(("mig_*",), _but("h100mig"), "MIG is off"),
    MissingMetrics(("gpu_nvlink*", "nvlink_*"), ("t4", "l40s"), "boards without NVLink"),
    MissingMetrics(
        (
            "gpu_nvlinks_expected",
            "gpu_nvlinks_active",
            "gpu_nvlink_speed_bytes_per_second",
            "nvlink_up",
            "nvlink_peer_*",
        ),
        ("h100mig", "h100guest"),
        "the number that should be up is unknown",
    ),
    MissingMetrics(
        ("gpu_nvlink_recoveries_total", "nvlink_recoveries_total", "nvlink_bit_error_ratio"),
        (*AMPERE, *HOPPER),
        "Blackwell and later",
    ),
    MissingMetrics(("nvlink_peer_peer",), BLACKWELL, "its switches are on no bus of this host"),
    MissingMetrics(("fabric_*",), BEFORE_HOPPER, "Hopper and later"),
    MissingMetrics(("fabric_status",), ("h100pcie", "h100guest"), "not in a fabric"),
    MissingMetrics(("fabric_health", "fabric_health_summary"), HOPPER, "not supported"),
    MissingMetrics(("fabric_cluster_uuid", "fabric_clique_id"), (*HOPPER, "b200"), "a fabric of one node"),
    MissingMetrics(("platform_*",), _but("gb200"), "no rack information"),
    MissingMetrics(("gpu_c2c_links_*", "c2c_link_up"), _but("gb200"), "Grace hosts"),
)


def missing(kind: str, metrics: Iterable[str]) -> set[str]:
    """Return those of these metrics that a kind of node lacks."""
    patterns = [f"gpumon_{metric}" for row in MISSING_METRICS if kind in row.kinds for metric in row.metrics]
    return {metric for metric in metrics if any(fnmatchcase(metric, pattern) for pattern in patterns)}
