"""From what is remembered to what is shown: states of GPUs, rows of the node, and what was so an hour ago. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from gpumon.health.architectures import possible
from gpumon.health.expectation import Expectation
from gpumon.health.terms import OK, UNKNOWN
from gpumon.model.gpu_state import GpuState
from gpumon.model.node import Driver, Node
from gpumon.model.now import Now
from gpumon.model.release import NODE, Release
from gpumon.state import error_counters, expected_gpus, port_inventory
from gpumon.state.gpu_record import GpuRecord, readings
from gpumon.state.limit_series import capped
from gpumon.state.released_gpus import unwatched
from gpumon.state.report import InternalState, Report
from gpumon.state.settings import ReducerSettings

NOT_READ = "not read yet"
"""Of a GPU that the store remembers, until the first poll that has it ends."""
_NOBODY_LOOKS = ("nvml_up", "gpus_visible", "gpus_on_pci_bus", "snapshot_timestamp_seconds")
"""Rows of the node that are absent while nobody looks at the driver: nothing is known, and nothing is wrong."""


def shown(report: Report, now: Now, terms: ReducerSettings) -> Report:
    """The Report with all that follows from its memory."""
    memory = report.internal
    status = memory.status
    fresh = memory.heard_at is not None and now.uptime - memory.heard_at <= terms.stale_after
    away = unwatched(memory, report.release, now.uptime)
    down = None if NODE in away else _down(memory, fresh=fresh, terms=terms)
    states = tuple(
        _state(gpu, report, down, now, terms, released=gpu.bus_id in away)
        for gpu in sorted(memory.inventory.values(), key=lambda gpu: gpu.index)
    )
    alive = status is not None and status.up and NODE not in away
    expected = expected_gpus.expected(memory, terms.expected)
    node = _unwatched_node(_node(report, expected, down, fresh=fresh), report.release, away)
    node = replace(node, **_link_rows(report, now))
    notices = {"driver": None if node.nvml_up is None else down, "links": port_inventory.notice(memory.links, now)}
    others = {subject: words for subject, words in report.notices.items() if subject not in notices}
    known = replace(
        report,
        expectation=expected,
        gpus=states,
        excluded=memory.excluded,
        catalogue=terms.catalogue,
        driver=Driver(driver=status.driver, nvml=status.nvml, cuda=status.cuda) if status and alive else Driver(),
        node=node,
        ports=memory.links.ports if port_inventory.current(memory.links, now) else (),
        gone_ports=memory.links.gone if port_inventory.current(memory.links, now) else (),
        notices={subject: words for subject, words in notices.items() if words} | others,
    )
    return capped(known)


def _down(memory: InternalState, *, fresh: bool, terms: ReducerSettings) -> str | None:
    """Why no GPU of the node can be read now; None when they can."""
    if memory.status is not None and not memory.status.up:
        return f"{memory.status.error}: {memory.status.remedy}"
    if memory.samplers.gave_up:
        return "too many children cannot be ended; see abandoned_children"
    if not fresh and memory.heard_at is not None:
        return f"no poll for more than {terms.stale_after:g} s"
    if memory.status is None and memory.samplers.restarts.get("crash"):
        return f"the sampler has crashed {memory.samplers.restarts['crash']:.0f} times, and said nothing: see the log"
    return None


def _unwatched_node(node: Node, release: Release, away: Collection[str]) -> Node:
    """A release is over when what was released has been read again."""
    end = node.release_end_timestamp_seconds if release.end is None else release.end
    node = replace(node, release_end_timestamp_seconds=end if away else None)
    return replace(node, **dict.fromkeys(_NOBODY_LOOKS)) if NODE in away else node


def _state(
    gpu: GpuRecord, report: Report, down: str | None, now: Now, terms: ReducerSettings, *, released: bool
) -> GpuState:
    fault, detail = gpu.fault, gpu.detail
    if fault is None and not released:
        fault, detail = _unread(gpu, down, now, terms)
    xids = _xids(gpu, report.internal, terms)
    unwatched_level = UNKNOWN if released or fault is not None else OK
    health = float(max(report.health.of(gpu.uuid), unwatched_level))
    return GpuState(
        bus_id=gpu.bus_id,
        uuid=gpu.uuid,
        index=gpu.index,
        nvml_index=gpu.nvml_index,
        gpu=replace(readings(gpu, xids, fault, released=released), health=health),
        fault=fault,
        detail=detail,
        since=gpu.since,
        released=released,
        recalled=gpu.recalled,
        begun_at=gpu.begun_at,
        port_above=report.internal.ports_above.get(gpu.bus_id),
        peers=gpu.peers,
        peer_access=gpu.peer_access,
        platform=gpu.platform,
        board=gpu.board,
        **(_read(gpu) if fault is None and not released else {}),
    )


def _unread(gpu: GpuRecord, down: str | None, now: Now, terms: ReducerSettings) -> tuple[str | None, str]:
    """The fault of a GPU that had none when it was last read, if that is too long ago."""
    if down is not None or gpu.seen_at is None:
        return "unknown", down or NOT_READ
    if now.uptime - gpu.seen_at > terms.stale_after:
        return "unknown", f"not read for more than {terms.stale_after:g} s"
    return None, ""


def _read(gpu: GpuRecord) -> dict[str, Any]:
    """What goes when the GPU does not answer."""
    seen = gpu.seen
    if seen is None:
        return {}
    return {
        "ecc_volatile": None if seen.gpu is None else seen.gpu.ecc_errors_total,
        "links": gpu.links,
        "c2c_links": seen.c2c_links,
        "fabric": seen.fabric,
        "migs": seen.migs,
        "pids": seen.pids,
        "pids_at": seen.pids_at,
        "link_bytes": seen.link_bytes,
        "traffic": gpu.traffic,
        "idle_since": gpu.idle_since,
    }


def _xids(gpu: GpuRecord, memory: InternalState, terms: ReducerSettings) -> Mapping[str, tuple[float, float]]:
    """Count and last time by code; the critical codes that this GPU can have exist from the start."""
    has_links = gpu.seen is not None and bool(gpu.seen.c2c_links)
    can = possible(sorted(terms.catalogue.critical), gpu.identity.get("architecture"), chip_to_chip=has_links)
    return {str(xid): (0.0, 0.0) for xid in can} | dict(memory.xids.get(gpu.uuid, {}))


def _node(report: Report, expected: Expectation, down: str | None, *, fresh: bool) -> Node:
    memory, status = report.internal, report.internal.status
    nothing_here = memory.bus is not None and not expected_gpus.ours(memory.bus) and not expected.count
    tried = status is not None or memory.samplers.stuck_seconds or any(memory.samplers.restarts.values())
    return replace(
        report.node,
        simulated=float(report.simulated is not None),
        nvml_up=None if nothing_here or not tried else float(down is None and fresh),
        nvml_stuck_seconds=memory.samplers.stuck_seconds,
        gpus_expected=None if memory.bus is None else float(expected.count),
        gpus_visible=report.node.gpus_visible if down is None else None,
        gpus_on_pci_bus=_by_driver(memory.bus),
        maintenance_end_timestamp_seconds=_maintenance_end(report),
        sampler_restarts_total=dict(memory.samplers.restarts),
        abandoned_children=float(len(memory.samplers.abandoned) + len(memory.links.child.abandoned)),
        driver_calls_total=memory.samplers.driver_calls,
        nvswitch_errors_total=error_counters.nvswitch_errors(memory),
        dropped_series_total={
            **(report.node.dropped_series_total or {}),
            "ports": float(memory.links.left_out * port_inventory.SERIES_A_PORT),
        },
    )


def _maintenance_end(report: Report) -> float | None:
    """Absent, and not 0, until the store has told: 0 would say that a maintenance from before a restart has ended."""
    if report.maintenance is not None:
        return report.maintenance.until
    return 0.0 if report.internal.recalled else None


def _link_rows(report: Report, now: Now) -> dict[str, Any]:
    """What the links child knows of the node."""
    seen = port_inventory.current(report.internal.links, now)
    before = report.node.collector_denied
    denied = {name: one for name, one in (before or {}).items() if name not in port_inventory.COLLECTORS}
    denied |= dict.fromkeys(seen.denied if seen else (), 1.0)
    stops = port_inventory.stops(report.internal.links)
    return {
        **port_inventory.services(seen),
        "service_stops_total": stops,
        "collector_denied": None if before is None and not denied else denied,
    }


def _by_driver(bus: Mapping[str, str] | None) -> dict[str, float] | None:
    if bus is None:
        return None
    counted = {"nvidia": 0.0, "vfio-pci": 0.0, "none": 0.0}
    for driver in bus.values():
        counted[driver or "none"] = counted.get(driver or "none", 0.0) + 1
    return counted
