"""The view of a GPU: its state as outputs and checks read it, with what is derived from other sections. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from heapq import nlargest
from typing import Any, NamedTuple, TypeVar

from gpumon.health.catalogue import SHIPPED, Catalogue
from gpumon.health.xids import possible_xids
from gpumon.model.gpu import FAULTS, Gpu
from gpumon.model.gpu_state import GpuState
from gpumon.model.node import Node
from gpumon.model.reading import MAX_SERIES, Page, Table, count_series
from gpumon.model.snapshot import GpuReading
from gpumon.state.counters import integral_increments, totals

_Table = TypeVar("_Table", bound=Table)
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


# Limits of the number of series: the largest values are kept, or the first MIG instances and links


def limit_node(node: Node, dropped: Mapping[str, float]) -> Node:
    """Return the metrics of the node without the series beyond MAX_SERIES. `dropped`: those of the GPUs now.

    `dropped_series_total` is, by reason, the highest number of series that were dropped at one time.
    """
    cut, before = Counter(dropped), node.dropped_series_total or {}
    node = replace(
        node,
        nvswitch_errors_total=_largest_values(node.nvswitch_errors_total, "sxids", cut),
        poll_errors_total=_largest_values(node.poll_errors_total, "poll_errors", cut),
    )
    return replace(
        node,
        dropped_series_total={reason: max(float(cut[reason]), before.get(reason, 0.0)) for reason in MAX_SERIES},
    )


def limit_gpu(state: GpuState, cut: Counter[str]) -> GpuState:
    """Return the GPU without the series beyond MAX_SERIES. Count the dropped series in `cut`, by reason."""
    gpu = state.gpu
    if gpu.process_memory_bytes is not None and gpu.processes is not None:
        cut["processes"] += max(0, int(gpu.processes) - len(gpu.process_memory_bytes))  # the sampler sends the largest
    if len(gpu.xid_errors_total or ()) > MAX_SERIES["xids"]:
        largest = _largest_values(gpu.xid_errors_total, "xids", cut) or {}
        last = {xid: at for xid, at in (gpu.xid_last_timestamp_seconds or {}).items() if xid in largest}
        state = replace(state, gpu=replace(gpu, xid_errors_total=largest, xid_last_timestamp_seconds=last or None))
    if len(state.migs) > MAX_SERIES["migs"]:
        _count([mig.mig for mig in state.migs], "migs", cut)
        state = replace(state, migs=state.migs[: MAX_SERIES["migs"]])
    if max(len(state.links), len(state.peers), len(state.c2c_links)) > MAX_SERIES["links"]:
        links, peers, c2c_links = _links(state.links, cut), _links(state.peers, cut), _links(state.c2c_links, cut)
        state = replace(state, links=links, peers=peers, c2c_links=c2c_links)
    return state


def _links(links: Mapping[str, _Table], cut: Counter[str]) -> Mapping[str, _Table]:
    _count(list(links.values()), "links", cut)
    return dict(list(links.items())[: MAX_SERIES["links"]])


def _count(tables: Sequence[Table], reason: str, cut: Counter[str]) -> None:
    cut[reason] += sum(count_series(table, page) for table in tables[MAX_SERIES[reason] :] for page in Page)


def _largest_values(values: Mapping[str, float] | None, reason: str, cut: Counter[str]) -> dict[str, float] | None:
    """Return the largest values, at most MAX_SERIES[reason], in their original order. Count the others in `cut`."""
    if values is None or len(values) <= MAX_SERIES[reason]:
        return None if values is None else dict(values)
    cut[reason] += len(values) - MAX_SERIES[reason]
    largest = set(nlargest(MAX_SERIES[reason], values, key=lambda key: values[key]))
    return {key: value for key, value in values.items() if key in largest}
