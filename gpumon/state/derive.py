"""Derives the sections of the Report that outputs show (GPUs, node, ports, notices) from `Report.internal`. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from gpumon.health.architectures import possible_xids
from gpumon.health.expectation import Expectation
from gpumon.health.node_health import Health
from gpumon.health.verdict import OK, UNKNOWN
from gpumon.model.gpu_state import GpuState
from gpumon.model.node import Driver, Node
from gpumon.model.now import Now
from gpumon.model.snapshot import SANDBOX
from gpumon.model.time_window import NODE, WindowKind, Windows, last_to_end, released_scopes
from gpumon.state import error_counters, gpu_inventory, host_status, port_inventory
from gpumon.state.gpu_record import GpuRecord, readings
from gpumon.state.limit_series import limit_series
from gpumon.state.reducer_settings import ReducerSettings
from gpumon.state.released_gpus import unwatched_bus_ids
from gpumon.state.report import GpuInputs, InternalState, Report

NOT_READ = "not read yet"
"""`detail` of a GPU that has not been read since the start of the agent and has no other fault."""
_DRIVER_ROWS = ("nvml_up", "gpus_visible", "gpus_on_pci_bus", "snapshot_timestamp_seconds")
"""Metrics of the node that are absent while the whole node is released: their values are then unknown."""
_T = TypeVar("_T")


def derive(report: Report, now: Now, settings: ReducerSettings) -> Report:
    """Return the Report with all attributes updated that are derived from `Report.internal`."""
    internal = report.internal
    status, inventory = internal.status, internal.inventory
    fresh = internal.polled_at is not None and now.uptime - internal.polled_at <= settings.stale_after
    away = unwatched_bus_ids(internal, released_scopes(report.windows), now.uptime)
    down = None if NODE in away else _node_down_reason(internal, settings, fresh=fresh)
    alive = status is not None and status.up and NODE not in away
    expected = gpu_inventory.gpu_expectation(inventory, settings.expected)
    node = _released_rows(_node(report, expected, down, fresh=fresh), report.windows, away)
    node = replace(node, **host_status.node_rows(internal.host, node.collector_denied, now))
    readable = host_status.current(internal.host, now) is not None
    derived = {
        gpu.bus_id: _derive_gpu(gpu, report, down, now, settings, released=gpu.bus_id in away)
        for gpu in inventory.gpus.values()
    }
    states = tuple(sorted((state for _, state in derived.values()), key=lambda state: state.index))
    derived_report = replace(
        report,
        internal=replace(internal, derived=derived),
        expectation=_reuse_if_equal(report.expectation, expected),
        gpus=states,
        excluded=inventory.pci.excluded,
        catalogue=settings.catalogue,
        driver=Driver(driver=status.driver, nvml=status.nvml, cuda=status.cuda) if status and alive else Driver(),
        node=node,
        ports=internal.ports.ports if readable else (),
        gone_ports=internal.ports.missing if readable else (),
        notices=_notices(report, node, down, now),
    )
    limited = limit_series(derived_report)
    unchanged = len(limited.gpus) == len(report.gpus) and all(map(_is_same, limited.gpus, report.gpus))
    return replace(
        limited,
        gpus=report.gpus if unchanged else limited.gpus,
        node=_reuse_if_equal(report.node, limited.node),
        driver=_reuse_if_equal(report.driver, limited.driver),
    )


def _is_same(value: object, other: object) -> bool:
    return value is other


def _reuse_if_equal(before: _T, after: _T) -> _T:
    """Return `before` if both objects are equal, else `after`, so that readers can detect changes by identity."""
    return before if before == after else after


def _notices(report: Report, node: Node, down: str | None, now: Now) -> Mapping[str, str]:
    derived = {
        "driver": None if node.nvml_up is None else down,
        "links": host_status.notice(report.internal.host, now),
    }
    others = {subject: text for subject, text in report.notices.items() if subject not in derived}
    return _reuse_if_equal(report.notices, {subject: text for subject, text in derived.items() if text} | others)


def _node_down_reason(internal: InternalState, settings: ReducerSettings, *, fresh: bool) -> str | None:
    """Return the reason why no GPU of the node can be read now; None if there is none.

    `fresh`: whether the last poll is recent.
    """
    if internal.status is not None and not internal.status.up:
        return f"{internal.status.error}: {internal.status.remedy}"
    if internal.samplers.hang and not fresh:
        return internal.samplers.hang
    if internal.samplers.gave_up:
        return "too many children cannot be ended; see abandoned_children"
    if not fresh and internal.polled_at is not None:
        return f"no poll for more than {settings.stale_after:g} s"
    crashes = internal.samplers.restarts.get("crash")
    if internal.status is None and crashes:
        return f"the sampler has crashed {crashes:.0f} times before its first message: see the log"
    return None


def _released_rows(node: Node, windows: Windows, away: Collection[str]) -> Node:
    """Return Node with its rows adapted to releases.

    The row for the end of a release has the end of the release that ends last, and is kept until the GPUs have been
    read again. If the whole node is released, rows about the driver are None.
    """
    last = last_to_end(windows, WindowKind.RELEASE)
    end = node.release_end_timestamp_seconds if last is None else last.until
    node = replace(node, release_end_timestamp_seconds=end if away else None)
    return replace(node, **dict.fromkeys(_DRIVER_ROWS)) if NODE in away else node


# GPUs


def _derive_gpu(
    gpu: GpuRecord, report: Report, down: str | None, now: Now, settings: ReducerSettings, *, released: bool
) -> tuple[GpuInputs, GpuState]:
    """Return the inputs and the GpuState of a GPU. If the inputs did not change, return the same objects as before."""
    internal = report.internal
    fault, detail = gpu.fault, gpu.detail
    if fault is None and not released:
        fault, detail = _unread_fault(gpu, down, now, settings)
    lowest = UNKNOWN if released or fault is not None else OK
    inputs = GpuInputs(
        record=gpu,
        xids=internal.xids.get(gpu.uuid),
        catalogue=settings.catalogue,
        fault=fault,
        detail=detail,
        since=_fault_start(gpu, fault, report.health),
        health=float(max(report.health.level_of(gpu.uuid), lowest)),
        released=released,
        port_above=internal.inventory.pci.ports.get(gpu.bus_id),
        slot_lanes=internal.inventory.pci.slot_lanes.get(gpu.bus_id),
    )
    before = internal.derived.get(gpu.bus_id)
    if before is not None and before[0].same(inputs):
        return before
    return inputs, _state(inputs, None if before is None else before[1])


def _state(inputs: GpuInputs, before: GpuState | None) -> GpuState:
    gpu = inputs.record
    table = readings(
        gpu,
        _xids(inputs),
        inputs.fault,
        critical=inputs.catalogue.critical,
        released=inputs.released,
        health=inputs.health,
        slot_lanes=inputs.slot_lanes,
        before=None if before is None else before.gpu,
    )
    return GpuState(
        bus_id=gpu.bus_id,
        uuid=gpu.uuid,
        index=gpu.index,
        nvml_index=gpu.nvml_index,
        gpu=table,
        fault=inputs.fault,
        detail=inputs.detail,
        since=inputs.since,
        released=inputs.released,
        restored=gpu.restored,
        reset_at=gpu.reset_at,
        port_above=inputs.port_above,
        peers=gpu.peers,
        peer_access=gpu.peer_access,
        platform=gpu.platform,
        stored=gpu.stored,
        **(_reading(gpu) if inputs.fault is None and not inputs.released else {}),
    )


def _fault_start(gpu: GpuRecord, fault: str | None, health: Health) -> float | None:
    """Return the wall time at which the fault was detected; None without a fault.

    If an earlier run of the agent stored a verdict about the fault, return the time at which that verdict began.
    """
    verdict = health.open.get((f"gpu_{fault}", gpu.uuid)) if gpu.restored else None
    return gpu.since if verdict is None or gpu.since is None else min(gpu.since, verdict.since)


def _unread_fault(gpu: GpuRecord, down: str | None, now: Now, settings: ReducerSettings) -> tuple[str | None, str]:
    """Return the fault and its detail if the GPU cannot be read, or if its last reading is missing or too old.

    Return (None, "") otherwise. `down`: why no GPU of the node can be read; None if GPUs can be read.
    """
    if down is not None or gpu.read_at is None:
        return "unknown", down or NOT_READ
    if now.uptime - gpu.read_at > settings.stale_after:
        return "unknown", f"not read for more than {settings.stale_after:g} s"
    return None, ""


def _reading(gpu: GpuRecord) -> dict[str, Any]:
    """Return the fields of GpuState that come from the GPU's last reading; an empty dict if the GPU has no reading."""
    reading = gpu.reading
    if reading is None:
        return {}
    return {
        "ecc_volatile": None if reading.gpu is None else reading.gpu.ecc_errors_total,
        "links": gpu.links,
        "c2c_links": reading.c2c_links,
        "fabric": reading.fabric,
        "migs": reading.migs,
        "pids": reading.pids,
        "pids_at": reading.pids_at,
        "link_bytes": reading.link_bytes,
        "link_rates": gpu.link_rates,
        "idle_since": gpu.idle_since,
    }


def _xids(inputs: GpuInputs) -> Mapping[str, tuple[float, float]]:
    """Return, by Xid, the number of errors and the wall time of the last one.

    Critical Xids that the GPU can report, and has not reported yet, have the value (0, 0).
    """
    gpu, critical = inputs.record, inputs.catalogue.critical
    chip_to_chip = gpu.reading is not None and bool(gpu.reading.c2c_links)
    codes = possible_xids(sorted(critical), gpu.identity.get("architecture"), chip_to_chip=chip_to_chip)
    return {str(code): (0.0, 0.0) for code in codes} | dict(inputs.xids or {})


# The node


def _node(report: Report, expected: Expectation, down: str | None, *, fresh: bool) -> Node:
    internal = report.internal
    samplers, inventory = internal.samplers, internal.inventory
    bus = None if inventory.bus is None else inventory.bus.functions
    no_gpus = bus is not None and not gpu_inventory.owned_on_bus(bus) and not expected.count
    tried = internal.status is not None or samplers.stuck_seconds or any(samplers.restarts.values())
    left_out = float(internal.ports.left_out * port_inventory.MIN_SERIES_PER_PORT)
    return replace(
        report.node,
        simulated=float(report.simulated is not None),
        start_timestamp_seconds=report.started,
        nvml_up=None if no_gpus or not tried else float(down is None and fresh),
        nvml_stuck_seconds=samplers.stuck_seconds,
        gpus_expected=None if bus is None else float(expected.count),
        gpus_visible=report.node.gpus_visible if down is None else None,
        gpus_on_pci_bus=None if inventory.pci.place == SANDBOX else _count_by_driver(bus),
        maintenance_end_timestamp_seconds=_maintenance_end(report),
        sampler_restarts_total=dict(samplers.restarts),
        abandoned_children=float(len(samplers.abandoned) + len(internal.host.child.abandoned)),
        driver_calls_total=samplers.driver_calls,
        nvswitch_errors_total=error_counters.nvswitch_errors(internal),
        dropped_series_total={**(report.node.dropped_series_total or {}), "ports": left_out},
    )


def _maintenance_end(report: Report) -> float | None:
    """Return the wall time at which the maintenance in force ends. If none is in force, return 0 or None.

    None: verdicts from before the start of the agent are not exported yet, or they are lost with a damaged store and no
    operator has cleared the verdict about that. As long as the metric is absent, the alert rules keep the last exported
    verdicts.
    """
    if report.maintenance is not None:
        return report.maintenance.until
    hidden = not report.internal.restored or report.hides_verdicts or report.lost_history
    return None if hidden else 0.0


def _count_by_driver(bus: Mapping[str, str] | None) -> dict[str, float] | None:
    if bus is None:
        return None
    counts = {"nvidia": 0.0, "vfio-pci": 0.0, "none": 0.0}
    for driver in bus.values():
        counts[driver or "none"] = counts.get(driver or "none", 0.0) + 1
    return counts
