"""Table of the metrics of dcgm-exporter on /metrics/dcgm. To add a metric, add a row to FIELDS.

NVIDIA calls the names and units of dcgm-exporter up to 4.8 `legacy`, and those of 4.9 `canonical`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from gpumon.model.gpu import Gpu
from gpumon.model.gpu_state import GpuState
from gpumon.model.reading import metric_type, rows
from gpumon.outputs import dcgm_values as values
from gpumon.outputs.dcgm_values import Values
from gpumon.state.report import Report

UNITS: Mapping[str, float] = {"": 1, "%": 100, "MHz": 1e-6, "mJ": 1e3, "MiB": 2**-20, "MB/s": 1e-6, "ns": 1e9}
"""For each unit of dcgm-exporter, the factor that converts a value in gpumon's base unit; "" is the base unit."""


Read = Callable[[Report, GpuState], Values]


class DcgmField(NamedTuple):
    """One metric of dcgm-exporter, and how its values are read from gpumon's Report."""

    legacy: str
    canonical: str
    help: str
    unit: str
    """Unit of the metric under its legacy name, a key of UNITS. Under a different canonical name it has the base unit.
    """
    read: Read
    """Function that yields the values for a GPU in gpumon's base unit; it yields nothing if they are unknown."""
    source: str = ""
    """Name of a row of `Gpu`; if the row has labels, followed by a colon and a label value. Empty for a computed value.
    """

    def type(self, *, canonical: bool) -> str:
        """Return the Prometheus type of the metric: counter if the name of its `source` ends in _total, else gauge.

        A computed value has no `source`: its own name decides. A DCGM_EXP_ metric is a gauge if `canonical`, else a
        counter, as dcgm-exporter declares it, although it can decrease.
        """
        if self.legacy.startswith("DCGM_EXP_"):
            return "gauge" if canonical else "counter"
        name = self.canonical if canonical else self.legacy
        return metric_type(self.source.partition(":")[0] or name.lower())


def values_of(table: object, source: str) -> Values:
    """Yield the value of a row of a metric table, if it has a value. `source` has the form of DcgmField.source."""
    name, _, key = source.partition(":")
    row = getattr(table, name, None)
    value = (row or {}).get(key) if key else row
    if value is not None:
        yield (), value


def _row(legacy: str, source: str, unit: str = "", canonical: str = "") -> DcgmField:
    """Return a metric with the value of the row `source` of `Gpu`. The given names lack the prefix DCGM_FI_."""
    text = rows(Gpu)[source.partition(":")[0]].help
    names = (f"DCGM_FI_{legacy}", f"DCGM_FI_{canonical or legacy}")
    return DcgmField(*names, text, unit, lambda _, state: values_of(state.gpu, source), source)


def _computed_field(read: Read, text: str, legacy: str, canonical: str = "", unit: str = "") -> DcgmField:
    """Return a metric with values that `read` computes. The given names lack the prefix DCGM_."""
    return DcgmField(f"DCGM_{legacy}", f"DCGM_{canonical or legacy}", text, unit, read)


DEFAULTS: tuple[DcgmField, ...] = (
    _row("DEV_SM_CLOCK", "clock_hertz:sm", "MHz", "DEV_SM_CLOCK_HERTZ"),
    _row("DEV_MEM_CLOCK", "clock_hertz:memory", "MHz", "DEV_MEMORY_CLOCK_HERTZ"),
    _row("DEV_MEMORY_TEMP", "memory_temperature_celsius", "", "DEV_MEMORY_TEMP_CELSIUS"),
    _row("DEV_GPU_TEMP", "temperature_celsius", "", "DEV_GPU_TEMP_CELSIUS"),
    _row("DEV_POWER_USAGE", "power_watts", "", "DEV_BOARD_POWER_WATTS"),
    _row("DEV_TOTAL_ENERGY_CONSUMPTION", "energy_joules_total", "mJ", "DEV_GPU_ENERGY_JOULES_TOTAL"),
    _row("DEV_PCIE_REPLAY_COUNTER", "pcie_replays_total", "", "DEV_PCIE_REPLAY_TOTAL"),
    _row("DEV_GPU_UTIL", "utilization_ratio", "%", "DEV_GPU_UTIL_RATIO"),
    _row("DEV_MEM_COPY_UTIL", "memory_utilization_ratio", "%", "DEV_MEMORY_UTIL_RATIO"),
    _row("DEV_ENC_UTIL", "encoder_utilization_ratio", "%", "DEV_ENC_UTIL_RATIO"),
    _row("DEV_DEC_UTIL", "decoder_utilization_ratio", "%", "DEV_DEC_UTIL_RATIO"),
    _computed_field(values.last_xid, "Last Xid of this boot, 0 without one.", "FI_DEV_XID_ERRORS", "FI_DEV_XID_ERROR"),
    _row("DEV_FB_FREE", "memory_free_bytes", "MiB", "DEV_FB_FREE_BYTES"),
    _row("DEV_FB_USED", "memory_used_bytes", "MiB", "DEV_FB_USED_BYTES"),
    _row("DEV_FB_RESERVED", "memory_reserved_bytes", "MiB", "DEV_FB_RESERVED_BYTES"),
    _computed_field(
        values.nvlink_traffic,
        "NVLink traffic in both directions.",
        "FI_DEV_NVLINK_BANDWIDTH_TOTAL",
        "FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND",
        "MB/s",
    ),
    _row("DEV_VGPU_LICENSE_STATUS", "vgpu_licensed"),
    _row(
        "DEV_UNCORRECTABLE_REMAPPED_ROWS", "rows_remapped_total:uncorrectable", "", "DEV_ROW_REMAP_UNCORRECTABLE_TOTAL"
    ),
    _row("DEV_CORRECTABLE_REMAPPED_ROWS", "rows_remapped_total:correctable", "", "DEV_ROW_REMAP_CORRECTABLE_TOTAL"),
    _row("DEV_ROW_REMAP_FAILURE", "row_remap_failed", "", "DEV_ROW_REMAP_FAILED"),
    _row("PROF_GR_ENGINE_ACTIVE", "graphics_active_ratio", "", "PROF_GR_ENGINE_UTIL_RATIO"),
    _row("PROF_PIPE_TENSOR_ACTIVE", "tensor_active_ratio", "", "PROF_TENSOR_UTIL_RATIO"),
    _row("PROF_DRAM_ACTIVE", "dram_active_ratio", "", "PROF_DRAM_UTIL_RATIO"),
    _row("PROF_PCIE_TX_BYTES", "pcie_transmit_bytes_per_second"),
    _row("PROF_PCIE_RX_BYTES", "pcie_receive_bytes_per_second"),
)
"""The metrics that dcgm-exporter exports by default."""
FIELDS: tuple[DcgmField, ...] = (
    *DEFAULTS,
    *(
        _computed_field(
            partial(values.nvlink_rate, f"nvlink_{way}_bytes_total"),
            f"NVLink traffic in bytes per second, {text}.",
            f"FI_PROF_NVLINK_{short}_BYTES",
        )
        for short, way, text in (("TX", "transmit", "sent"), ("RX", "receive", "received"))
    ),
    _row("DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "nvlink_errors_total:crc"),
    _row("DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "nvlink_errors_total:replay"),
    _row("DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "nvlink_errors_total:recovery"),
    _row("DEV_PCIE_LINK_GEN", "pcie_link_generation"),
    _row("DEV_PCIE_LINK_WIDTH", "pcie_link_width"),
    _row("DEV_PCIE_MAX_LINK_GEN", "pcie_link_generation_max"),
    _row("DEV_PCIE_MAX_LINK_WIDTH", "pcie_link_width_max"),
    _row("DEV_PSTATE", "performance_state"),
    _computed_field(
        values.memory_share, "Share of GPU memory in use, without reserved memory.", "FI_DEV_FB_USED_PERCENT"
    ),
    _row("DEV_BAR1_TOTAL", "bar1_total_bytes", "MiB"),
    _row("DEV_BAR1_USED", "bar1_used_bytes", "MiB"),
    _row("DEV_FB_TOTAL", "memory_total_bytes", "MiB", "DEV_FB_CAPACITY_BYTES"),
    _row("PROF_SM_ACTIVE", "sm_active_ratio", "", "PROF_SM_UTIL_RATIO"),
    _row("PROF_SM_OCCUPANCY", "sm_occupancy_ratio", "", "PROF_SM_OCCUPANCY_RATIO"),
    _row("PROF_PIPE_FP64_ACTIVE", "fp64_active_ratio", "", "PROF_FP64_UTIL_RATIO"),
    _row("PROF_PIPE_FP32_ACTIVE", "fp32_active_ratio", "", "PROF_FP32_UTIL_RATIO"),
    _row("PROF_PIPE_FP16_ACTIVE", "fp16_active_ratio", "", "PROF_FP16_UTIL_RATIO"),
    _row("DEV_POWER_VIOLATION", "clock_event_seconds_total:sw_power_cap", "ns"),
    _row("DEV_THERMAL_VIOLATION", "performance_limited_seconds_total:thermal", "ns"),
    _row("DEV_SYNC_BOOST_VIOLATION", "clock_event_seconds_total:sync_boost", "ns"),
    _row("DEV_BOARD_LIMIT_VIOLATION", "performance_limited_seconds_total:board_limit", "ns"),
    _row("DEV_LOW_UTIL_VIOLATION", "performance_limited_seconds_total:low_utilization", "ns"),
    _row("DEV_RELIABILITY_VIOLATION", "performance_limited_seconds_total:reliability", "ns"),
    _computed_field(
        values.clock_event_mask,
        "Bit mask of reasons that limit the clocks.",
        "FI_DEV_CLOCK_THROTTLE_REASONS",
        "FI_DEV_CLOCKS_EVENT_REASONS",
    ),
    *(
        _computed_field(
            partial(values.ecc_errors, severity, period),
            f"ECC errors that were {severity}, {since}.",
            f"FI_DEV_ECC_{bits}_{period}_TOTAL",
        )
        for bits, severity in (("SBE", "corrected"), ("DBE", "uncorrected"))
        for period, since in (("VOL", "since the last GPU reset"), ("AGG", "over the lifetime of the board"))
    ),
    _row("DEV_ROW_REMAP_PENDING", "row_remap_pending"),
    _row("DEV_SLOWDOWN_TEMP", "temperature_slowdown_celsius", "", "DEV_GPU_TEMP_SLOWDOWN_CELSIUS"),
    _row("DEV_SHUTDOWN_TEMP", "temperature_shutdown_celsius", "", "DEV_GPU_TEMP_SHUTDOWN_CELSIUS"),
    _row("DEV_POWER_USAGE_INSTANT", "power_instant_watts", "", "DEV_BOARD_POWER_RAW_WATTS"),
    _row("DEV_POWER_MGMT_LIMIT", "power_limit_requested_watts", "", "DEV_BOARD_POWER_LIMIT_REQUESTED_WATTS"),
    _row("DEV_ENFORCED_POWER_LIMIT", "power_limit_watts", "", "DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS"),
    _row("DEV_FAN_SPEED", "fan_speed_ratio", "%", "DEV_FAN_SPEED_RATIO"),
    _computed_field(values.gpu_count, "Number of GPUs of the node.", "FI_DEV_COUNT", "FI_SYSTEM_GPU_QUANTITY"),
    _computed_field(values.recent_xids, "Xid errors of the last five minutes.", "EXP_XID_ERRORS_COUNT"),
    _computed_field(values.health_status, "Worst verdict: 0 pass, 10 warning, 20 failure.", "EXP_GPU_HEALTH_STATUS"),
)
"""All metrics of /metrics/dcgm, in the order of the page."""
