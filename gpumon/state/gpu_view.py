"""The view of a GPU: its state as outputs and checks read it, with what is derived from other sections. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from gpumon.health.catalogue import SHIPPED, Catalogue
from gpumon.health.xids import possible_xids
from gpumon.model.gpu import FAULTS, Gpu
from gpumon.model.gpu_state import GpuState
from gpumon.model.snapshot import GpuReading
from gpumon.state.counters import integral_increments, totals

_FAULT_ROWS: Mapping[str | None, dict[str, float]] = {
    fault: {name: float(name == fault) for name in FAULTS} for fault in (None, *FAULTS)
}


class ViewInputs(NamedTuple):
    """What the view of a GPU shows in addition to its own state."""

    xids: Mapping[str, tuple[float, float]] | None = None
    """Number of errors, and wall time of the last one, by Xid; None without an error."""
    catalogue: Catalogue = SHIPPED
    fault: str | None = None
    detail: str = ""
    since: float | None = None
    health: float | None = None
    released: bool = False
    port_above: str | None = None
    slot_lanes: int | None = None
    """Number of PCIe lanes that the port above the GPU supports."""


class GpuView(NamedTuple):
    """A GPU as outputs and checks read it, with what it was made from."""

    gpu: GpuState
    inputs: ViewInputs
    shown: GpuState


def view(gpu: GpuState, inputs: ViewInputs, before: GpuView | None) -> GpuView:
    """Return the view of a GPU; the same object as `before` if nothing changed."""
    if before is not None and before.gpu is gpu and before.inputs == inputs:
        return before
    shown = replace(
        gpu,
        gpu=readings(gpu, inputs, None if before is None else before.shown.gpu),
        fault=inputs.fault,
        detail=inputs.detail,
        since=inputs.since,
        released=inputs.released,
        port_above=inputs.port_above,
    )
    if inputs.fault is not None or inputs.released or gpu.reading is None:
        shown = replace(
            shown,
            ecc_volatile=None,
            links={},
            c2c_links={},
            fabric=None,
            migs=(),
            link_rates={},
            idle_since=None,
            pids=None,
            pids_at=None,
            link_bytes={},
        )
    return GpuView(gpu, inputs, shown)


def readings(gpu: GpuState, inputs: ViewInputs, before: Gpu | None = None) -> Gpu:
    """Return the metrics to export for a GPU. Critical Xids that the GPU can report have the value 0 until it does.

    If the GPU is released, does not answer or was never read, only the rows that need no reading have values: identity,
    state, health, observed seconds and Xids. If a labelled row that this function computes equals that of `before`, it
    is the same object. This is not so for labelled rows that are taken from the reading unchanged.
    """
    fault, critical, reading = inputs.fault, inputs.catalogue.critical, gpu.reading
    chip_to_chip = reading is not None and bool(reading.c2c_links)
    possible = possible_xids(sorted(critical), gpu.identity.get("architecture"), chip_to_chip=chip_to_chip)
    xids = {str(code): (0.0, 0.0) for code in possible} | dict(inputs.xids or {})
    own: dict[str, Any] = {
        **gpu.identity,
        "up": None if inputs.released and fault is None else float(fault is None),
        "released": float(inputs.released),
        "fault": _FAULT_ROWS[fault],
        "health": inputs.health,
        "observed_seconds_total": gpu.observed_seconds,
        "xid_errors_total": {xid: count for xid, (count, _) in xids.items()},
        "xid_critical_errors_total": sum(count for xid, (count, _) in xids.items() if int(xid) in critical),
        "xid_last_timestamp_seconds": {xid: last for xid, (_, last) in xids.items() if last} or None,
    }
    table = Gpu()
    if not inputs.released and fault is None and reading is not None and reading.gpu is not None:
        table = reading.gpu
        own |= _link_counts(gpu, reading) | totals(table, gpu.counters, integral_increments(reading.increments))
        if inputs.slot_lanes and table.pcie_link_width_max:
            own["pcie_link_width_max"] = min(table.pcie_link_width_max, float(inputs.slot_lanes))
    for name, value in own.items():
        if isinstance(value, dict) and value == (old := getattr(before, name, None)):
            own[name] = old
    return replace(table, **own)


def _link_counts(gpu: GpuState, reading: GpuReading) -> dict[str, Any]:
    up = [link.up for link in gpu.links.values() if link.up is not None]
    c2c = [link.up for link in reading.c2c_links.values() if link.up is not None]
    return {
        "nvlinks_expected": float(len(up)) if up else None,
        "nvlinks_active": float(sum(up)) if up else None,
        "nvlink_errors_total": gpu.link_sums.get("errors_total"),
        "nvlink_recoveries_total": gpu.link_sums.get("recoveries_total"),
        "c2c_links_expected": float(len(c2c)) if c2c else None,
        "c2c_links_active": float(sum(c2c)) if c2c else None,
    }
