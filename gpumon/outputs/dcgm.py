"""The page /metrics/dcgm: metrics as dcgm-exporter names them. To add a metric, add a row to FIELDS.

NVIDIA calls the names and units of dcgm-exporter up to 4.8 `legacy`, and those of 4.9 `canonical`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from gpumon.health.table import SUBJECT_OF
from gpumon.health.verdict import FAIL, OK, WARN
from gpumon.model.allocation import Owner
from gpumon.model.error_event import XID, ErrorEvent
from gpumon.model.gpu import CLOCK_EVENTS, Gpu
from gpumon.model.gpu_state import GpuState
from gpumon.model.reading import Labels, metric_type, rows
from gpumon.outputs.prometheus import head, number_text, series_prefix
from gpumon.state.report import Report

Values = Iterator[tuple[Labels, float]]
"""Pairs of labels, without those of the GPU itself, and value, one for each series; empty if none is known."""
XID_WINDOW_SECONDS = 300
"""Length of the window of DCGM_EXP_XID_ERRORS_COUNT in seconds: the default of dcgm-exporter."""
WATCHES = {
    "DRIVER": ("gpu",),
    "MEM": ("memory",),
    "NVLINK": ("nvlink", "fabric"),
    "PCIE": ("pcie",),
    "POWER": ("power",),
    "THERMAL": ("thermal", "clocks"),
    "ALL": ("xid",),
}
"""Subjects of gpumon's checks, by DCGM health watch. DCGM reports Xids that belong to no other watch under ALL."""
RESULTS = {OK: 0.0, WARN: 10.0, FAIL: 20.0}
"""DCGM's health result by level of a verdict. DCGM has no result for the level unknown."""


def last_xid(report: Report, state: GpuState) -> Values:
    """Yield the last Xid of the GPU in this boot, or 0 if none is known, even if the kernel log cannot be read."""
    times = state.gpu.xid_last_timestamp_seconds or {"0": 0.0}
    code = int(max(times, key=lambda xid: times[xid]))
    events = [event for event in _xid_events(report, state) if event.code == code]
    if events and events[-1].last.boot_id != report.boot_id:
        code = 0
    text = report.catalogue.xid(code).name if code else "No Error"
    if state.gpu.xid_critical_errors_total is not None:
        yield (("err_code", str(code)), ("err_msg", text)), code


def recent_xids(report: Report, state: GpuState) -> Values:
    """Yield, for each Xid that occurred in the last XID_WINDOW_SECONDS, the number of errors in its last burst."""
    now = report.node.snapshot_timestamp_seconds
    for event in _xid_events(report, state):
        if now is not None and now - event.last.wall <= XID_WINDOW_SECONDS:
            yield (("window_size_in_ms", f"{1000 * XID_WINDOW_SECONDS}"), ("xid", str(event.code))), event.count


def _xid_events(report: Report, state: GpuState) -> list[ErrorEvent]:
    names = {state.uuid, state.pci_name}
    own = (event for event in report.events if event.kind == XID and event.device in names and not event.historical)
    return list({event.code: event for event in own}.values())


def health_status(report: Report, state: GpuState) -> Values:
    """Yield DCGM's result of the worst verdict of each health watch, or 0 without one; omit an unknown health."""
    own = [verdict for verdict in report.health.verdicts if verdict.device in {state.uuid, state.pci_name}]
    for watch, subjects in WATCHES.items():
        verdicts = [verdict for verdict in own if SUBJECT_OF.get(verdict.check) in subjects]  # the worst first
        level, check = (verdicts[0].level, verdicts[0].check) if verdicts else (OK, "")
        if level in RESULTS and (level or (state.fault is None and report.health.evaluated)):
            yield (("health_watch", watch), ("health_error_code", check)), RESULTS[level]


def clock_event_mask(_: Report, state: GpuState) -> Values:
    """Yield NVML's bit mask of the reasons that limit the clocks."""
    active = state.gpu.clock_event_active
    if active is not None:
        yield (), sum(CLOCK_EVENTS[reason] for reason, value in active.items() if value)


def nvlink_traffic(_: Report, state: GpuState) -> Values:
    """Yield the NVLink traffic in both directions in bytes per second, as the average since the previous reading."""
    rates = [rate for name, rate in state.link_rates.items() if name.startswith("nvlink")]
    if rates:
        yield (), sum(rates)


def nvlink_rate(row: str, _: Report, state: GpuState) -> Values:
    """Yield the NVLink traffic that the counter `row` of `Gpu` measures, in bytes per second."""
    if row in state.link_rates:
        yield (), state.link_rates[row]


def memory_share(_: Report, state: GpuState) -> Values:
    """Yield the share of the GPU memory in use, without what the driver reserves."""
    used, total = state.gpu.memory_used_bytes, state.gpu.memory_total_bytes
    if used is not None and total:
        yield (), used / (total - (state.gpu.memory_reserved_bytes or 0.0))


def gpu_count(report: Report, state: GpuState) -> Values:
    if state.gpu.up and report.node.gpus_visible is not None:
        yield (), report.node.gpus_visible


def ecc_errors(severity: str, period: str, _: Report, state: GpuState) -> Values:
    """Yield the sum of DRAM and SRAM ECC errors: of the lifetime if `period` is AGG, else since the last reset."""
    errors = (state.gpu.ecc_errors_lifetime_total if period == "AGG" else state.ecc_volatile) or {}
    dram, sram = (errors.get(f"{severity},{location}") for location in ("dram", "sram"))
    if dram is not None and sram is not None:
        yield (), dram + sram


UNITS: Mapping[str, float] = {"": 1, "%": 100, "MHz": 1e-6, "mJ": 1e3, "MiB": 2**-20, "MB/s": 1e-6, "ns": 1e9}
"""For each unit of dcgm-exporter, the factor that converts a value in gpumon's base unit; "" is the base unit."""


Read = Callable[[Report, GpuState], Values]


class DcgmField(NamedTuple):
    """One metric of dcgm-exporter, and how its values are read from gpumon's Report."""

    legacy: str
    canonical: str
    help: str
    unit: str
    """A key of UNITS. Under a different canonical name the metric has the base unit."""
    read: Read
    """Function that yields the values for a GPU in gpumon's base unit; it yields nothing if they are unknown."""
    source: str = ""
    """Name of a row of `Gpu`, with a colon and a label value if the row has labels. Empty for a computed value."""

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
    _computed_field(last_xid, "Last Xid of this boot, 0 without one.", "FI_DEV_XID_ERRORS", "FI_DEV_XID_ERROR"),
    _row("DEV_FB_FREE", "memory_free_bytes", "MiB", "DEV_FB_FREE_BYTES"),
    _row("DEV_FB_USED", "memory_used_bytes", "MiB", "DEV_FB_USED_BYTES"),
    _row("DEV_FB_RESERVED", "memory_reserved_bytes", "MiB", "DEV_FB_RESERVED_BYTES"),
    _computed_field(
        nvlink_traffic,
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
            partial(nvlink_rate, f"nvlink_{way}_bytes_total"),
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
    _computed_field(memory_share, "Share of GPU memory in use, without reserved memory.", "FI_DEV_FB_USED_PERCENT"),
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
        clock_event_mask,
        "Bit mask of reasons that limit the clocks.",
        "FI_DEV_CLOCK_THROTTLE_REASONS",
        "FI_DEV_CLOCKS_EVENT_REASONS",
    ),
    *(
        _computed_field(
            partial(ecc_errors, severity, period),
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
    _computed_field(gpu_count, "Number of GPUs of the node.", "FI_DEV_COUNT", "FI_SYSTEM_GPU_QUANTITY"),
    _computed_field(recent_xids, "Xid errors of the last five minutes.", "EXP_XID_ERRORS_COUNT"),
    _computed_field(health_status, "Worst verdict: 0 pass, 10 warning, 20 failure.", "EXP_GPU_HEALTH_STATUS"),
)
"""All metrics of /metrics/dcgm, in the order of the page."""


PATH = "/metrics/dcgm"
_DIGITS = 9
"""Decimal places to which a converted value is rounded, so that 1980000000 Hz is exactly 1980 MHz."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmPage:
    """Renders the page /metrics/dcgm. It caches nothing, so it costs nothing until a client requests the page."""

    host: str
    canonical: bool = False
    """True for the names and units of dcgm-exporter 4.9; False for those of 4.8 and earlier."""
    owner_labels: bool = False
    """True for the labels pod, namespace, container and hpc_job of dcgm-exporter."""
    host_label: str | None = None
    """Label for the host name; None for the label that dcgm-exporter has: hostname if `canonical`, else Hostname."""

    def render(self, report: Report) -> str:
        version = "DCGM_FI_SYSTEM_DRIVER_VERSION" if self.canonical else "DCGM_FI_DRIVER_VERSION"
        host_label = self.host_label or ("hostname" if self.canonical else "Hostname")
        common = {host_label: self.host, version: report.driver.driver}
        owners = _owner_labels(report) if self.owner_labels else {}
        gpus = [(state, _labels(state, common)) for state in report.gpus]
        page = ""
        for field in FIELDS:
            name = field.canonical if self.canonical else field.legacy
            unit = field.unit if name == field.legacy else ""
            factor, lines = UNITS[unit], []
            for state, own in gpus:
                for labels, value in [*_instance_values(field, state)] or field.read(report, state):
                    number = value if factor == 1 else round(value * factor, _DIGITS)
                    owner = owners.get((state.uuid, dict(labels).get("GPU_I_ID", "")), ())
                    lines.append(f"{series_prefix(name, own + labels + owner)}{number_text(number)}\n")
            text = f"{field.help} In {unit}." if unit else field.help
            page += head(name, text, field.type(canonical=self.canonical)) + "".join(lines) if lines else ""
        return page


def _instance_values(field: DcgmField, state: GpuState) -> Values:
    # These replace the GPU's own value. All compute instances of a GPU instance have the same values.
    instances = {mig.gpu_instance_id: mig for mig in reversed(state.migs)}
    for number, mig in sorted(instances.items()):
        labels = (("GPU_I_PROFILE", mig.profile.rpartition("c.")[2]), ("GPU_I_ID", str(number)))
        yield from ((labels, value) for _, value in values_of(mig.mig, field.source))


_OWNER_LABELS = {
    "pod": "pod_name",
    "namespace": "pod_namespace",
    "container": "container_name",
    "hpc_job": "slurm_job_id",
}
"""Attribute of Owner for each label of an owner that dcgm-exporter has."""


def _owner_labels(report: Report) -> Mapping[tuple[str, str], Labels]:
    """Return the labels of the owner of each GPU or MIG instance that has one owner, by its uuid and instance id.

    With several owners there are none: the series of a GPU are not repeated for each of them.
    """
    instances = {mig.uuid: str(mig.gpu_instance_id) for state in report.gpus for mig in state.migs}
    owners: dict[tuple[str, str], list[Owner]] = {}
    for each in report.jobs.allocations:
        owners.setdefault((each.uuid, instances.get(each.mig_uuid, "")), []).append(report.jobs.public(each.owner))
    return {place: _owner_pairs(held[0]) for place, held in owners.items() if len(held) == 1}


def _owner_pairs(owner: Owner) -> Labels:
    pairs = ((label, getattr(owner, name)) for label, name in _OWNER_LABELS.items())
    return tuple((label, text) for label, text in pairs if text)


def _labels(state: GpuState, common: Mapping[str, str | None]) -> Labels:
    device = None if state.gpu.minor is None else f"nvidia{state.gpu.minor}"
    identity = {"gpu": str(state.index), "UUID": state.uuid, "pci_bus_id": state.bus_id}
    labels = {**identity, "device": device, "modelName": state.gpu.name, **common}
    return tuple((name, value) for name, value in labels.items() if value)
