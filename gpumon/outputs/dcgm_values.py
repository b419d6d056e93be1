"""Computes, for one GPU of the Report, the values of dcgm-exporter metrics that no metric table contains."""

from __future__ import annotations

from collections.abc import Iterator

from gpumon.health.table import SUBJECT_OF
from gpumon.health.verdict import FAIL, OK, WARN
from gpumon.model.error_event import XID, ErrorEvent
from gpumon.model.gpu import CLOCK_EVENTS
from gpumon.model.gpu_state import GpuState
from gpumon.model.reading import Labels
from gpumon.state.report import Report

Values = Iterator[tuple[Labels, float]]
"""Pairs of labels and value, one for each series; empty if no value is known. The labels of the GPU itself are omitted.
"""
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
    """Yield the last Xid of the GPU in this boot, or 0 if none is known, even if the kernel log cannot be read.

    Yield nothing if `xid_critical_errors_total` is None. If the Report no longer has the Xid's event, assume this boot.
    """
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
    """Return the last burst of each Xid of a GPU in the Report, without those before the agent's first start."""
    names = {state.uuid, state.pci_name}
    own = (event for event in report.events if event.kind == XID and event.device in names and not event.historical)
    return list({event.code: event for event in own}.values())


def health_status(report: Report, state: GpuState) -> Values:
    """Yield DCGM's result for each health watch: that of its worst verdict, or 0 if it has no verdict.

    Omit a watch whose health is unknown, for example because the GPU has a fault.
    """
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
    """Yield the number of GPUs that the driver counts on the node. Yield nothing for a GPU that does not answer."""
    if state.gpu.up and report.node.gpus_visible is not None:
        yield (), report.node.gpus_visible


def ecc_errors(severity: str, period: str, _: Report, state: GpuState) -> Values:
    """Yield the sum of DRAM and SRAM ECC errors: of the lifetime if `period` is AGG, else since the last GPU reset.

    `severity`: corrected or uncorrected.
    """
    errors = (state.gpu.ecc_errors_lifetime_total if period == "AGG" else state.ecc_volatile) or {}
    dram, sram = (errors.get(f"{severity},{location}") for location in ("dram", "sram"))
    if dram is not None and sram is not None:
        yield (), dram + sram
