"""next = fold(previous, arrival, now): the only way in which the agent's knowledge changes. Pure."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import assert_never

from gpumon.health.alert import RESOLVED, Alert, update_alerts
from gpumon.model import hold, maintenance
from gpumon.model.hold import Hold, HoldEnded, Holds
from gpumon.model.maintenance import Known, Maintenance, MaintenanceEnded
from gpumon.model.now import Now
from gpumon.model.release import Release
from gpumon.model.snapshot import DriverStatus, LinksSnapshot, PciBus, Snapshot
from gpumon.probe.core import state
from gpumon.state import error_counters, expected_gpus, gpu_inventory, health_reducer, port_inventory, released_gpus
from gpumon.state.derive import shown
from gpumon.state.messages import (
    Acceptance,
    AgentStatus,
    ErrorChanges,
    LinksStatus,
    Message,
    ProbeEnded,
    ProbeProgressed,
    ProbeStarted,
    SamplerStatus,
    StoredState,
    Tick,
    VerdictTransitions,
)
from gpumon.state.report import InternalState, Report
from gpumon.state.settings import ReducerSettings


def reduce(previous: Report, arrival: Message, now: Now, terms: ReducerSettings) -> Report:
    """The Report after this arrival."""
    match arrival:
        case Snapshot():
            report = _polled(previous, arrival, now)
        case LinksSnapshot() | LinksStatus():
            report = replace(previous, internal=_links(previous.internal, arrival, now))
        case SamplerStatus() | DriverStatus() | PciBus() | Acceptance():
            report = health_reducer.placed(replace(previous, internal=_remember(previous.internal, arrival)))
        case Release():
            memory = released_gpus.released(previous.internal, previous.release, arrival, now.uptime)
            report = replace(previous, release=arrival, internal=memory)
        case ErrorChanges():
            report = error_counters.take(previous, arrival)
        case StoredState():
            report = health_reducer.recall(error_counters.recall(previous, arrival), arrival, now)
        case VerdictTransitions():
            report = health_reducer.take(previous, arrival)
        case _:
            report = previous
    match arrival:
        case ProbeStarted() | ProbeProgressed() | ProbeEnded() | StoredState():
            report = _probe(report, arrival, now)
        case AgentStatus():
            report = _agent(report, arrival)
    known = maintenance.in_time(_maintenances(report, arrival), now, report.boot_id)
    holds = hold.in_time(_holds(report, arrival), now, report.boot_id)
    report = shown(replace(report, maintenances=known, holds=holds), now, terms)
    return _evaluated(report, now, terms) if isinstance(arrival, Tick) else report


# What is remembered


def _maintenances(report: Report, arrival: Message) -> Known:
    """What was begun before the store could be read came after what it knew."""
    match arrival:
        case Maintenance():
            return maintenance.begun(report.maintenances, arrival)
        case MaintenanceEnded():
            return maintenance.ended(report.maintenances, arrival)
        case StoredState():
            return functools.reduce(maintenance.begun, report.maintenances, arrival.maintenances)
        case _:
            return report.maintenances


def _holds(report: Report, arrival: Message) -> Holds:
    """The same of holds."""
    match arrival:
        case Hold():
            return hold.begun(report.holds, arrival)
        case HoldEnded():
            return hold.ended(report.holds, arrival)
        case StoredState():
            return functools.reduce(hold.begun, report.holds, arrival.holds)
        case _:
            return report.holds


def _remember(memory: InternalState, arrival: SamplerStatus | DriverStatus | PciBus | Acceptance) -> InternalState:
    match arrival:
        case SamplerStatus():
            known = gpu_inventory.leave_aside(memory.inventory, arrival.aside, memory.bus or {})
            known = gpu_inventory.recall(known, memory.boards)
            return released_gpus.heard(replace(memory, samplers=arrival, inventory=known), arrival)
        case DriverStatus():
            return released_gpus.heard(replace(memory, status=arrival), arrival)
        case PciBus():
            return expected_gpus.on_bus(memory, arrival)
        case Acceptance():
            return expected_gpus.accepted(memory, arrival)
        case _:
            assert_never(arrival)


def _links(memory: InternalState, arrival: LinksSnapshot | LinksStatus, now: Now) -> InternalState:
    if isinstance(arrival, LinksSnapshot):
        return replace(memory, links=port_inventory.see(memory.links, arrival, now))
    return replace(memory, links=replace(memory.links, child=arrival))


def _polled(report: Report, snapshot: Snapshot, now: Now) -> Report:
    memory = report.internal
    bus = memory.bus or {}
    known, own = memory.inventory, report.probe.own_load(now.at)
    for seen in snapshot.gpus:
        known = gpu_inventory.see(known, seen, bus, now, report.boot_id, own=own)
    known = gpu_inventory.expect(known, report.release.bus_ids, bus)
    if snapshot.complete:
        known = gpu_inventory.miss(
            known, {*snapshot.present, *memory.samplers.aside, *report.release.bus_ids}, bus, now
        )
    known = gpu_inventory.recall(known, memory.boards)
    memory = expected_gpus.polled(replace(memory, inventory=known, heard_at=now.uptime), snapshot)
    memory = released_gpus.heard(memory, snapshot)
    report = replace(report, internal=memory)
    return _tallied(report, snapshot) if snapshot.complete else report


def _tallied(report: Report, snapshot: Snapshot) -> Report:
    """What a complete poll says of itself."""
    node = report.node
    failed = {key.partition(",")[0] for key in snapshot.errors}
    faulted = any(gpu.fault is not None for gpu in report.internal.inventory.values())
    return replace(
        report,
        node=replace(
            node,
            gpus_visible=snapshot.visible,
            snapshot_timestamp_seconds=snapshot.wall,
            poll_duration_seconds={**(node.poll_duration_seconds or {}), **snapshot.durations},
            poll_success={
                **(node.poll_success or {}),
                **{tier: float(tier not in failed and not faulted) for tier in snapshot.durations},
            },
            polls_total=_added(node.polls_total, dict.fromkeys(snapshot.durations, 1.0)),
            poll_errors_total=_added(node.poll_errors_total, snapshot.errors),
            collector_denied={
                **{name: value for name, value in (node.collector_denied or {}).items() if name == "kernel_log"},
                **dict.fromkeys(snapshot.denied, 1.0),
            },
        ),
    )


def _added(counts: Mapping[str, float] | None, more: Mapping[str, float]) -> dict[str, float]:
    after = dict(counts or {})
    for key, amount in more.items():
        after[key] = after.get(key, 0.0) + amount
    return after


def _probe(report: Report, arrival: ProbeStarted | ProbeProgressed | ProbeEnded | StoredState, now: Now) -> Report:
    probe = report.probe
    match arrival:
        case ProbeStarted(id=run, probe=name, gpus=gpus):
            probe = state.started(probe, run, name, gpus)
        case ProbeProgressed(progress=progress):
            probe = replace(probe, progress=progress)
        case ProbeEnded(result=result):
            probe = state.ended(probe, result, at=now.at, uptime=now.uptime)
        case StoredState():
            probe = state.recalled(probe, arrival.probe_results, arrival.probe_runs, arrival.probe_skips)
    return replace(report, probe=probe)


def _agent(report: Report, agent: AgentStatus) -> Report:
    denied = {name: value for name, value in (report.node.collector_denied or {}).items() if name != "kernel_log"}
    node = replace(
        report.node,
        log_messages_total=dict(agent.log_messages),
        store_up=float(agent.store_up),
        kernel_log_up=None if agent.kernel_log_up is None else float(agent.kernel_log_up),
        kernel_log_overruns_total=agent.kernel_log_overruns,
        collector_denied=denied | ({"kernel_log": 1.0} if agent.kernel_log_denied else {}),
    )
    probe = replace(report.probe, next_run=agent.next_probe, unkillable=agent.probe_unkillable)
    return replace(report, node=node, notices=agent.notices, probe=probe)


# What is judged


def _evaluated(report: Report, now: Now, terms: ReducerSettings) -> Report:
    samples = list(report.samples())
    history = report.internal.history.add(samples, now.at)
    report = health_reducer.looked(replace(report, internal=replace(report.internal, history=history)), now, terms)
    alerts = update_alerts(
        report.alerts,
        report.health,
        report.gpus,
        now,
        boot_id=report.boot_id,
        in_maintenance=report.maintenance is not None,
    )
    return replace(
        report,
        alerts=alerts,
        node=replace(report.node, exposed_series=float(len(samples)), alerts=_alert_counts(alerts)),
    )


def _alert_counts(alerts: Iterable[Alert]) -> dict[str, float]:
    counted: dict[str, float] = {}
    for alert in alerts:
        if alert.state != RESOLVED:
            key = f"{alert.rule},{alert.severity},{alert.state}"
            counted[key] = counted.get(key, 0.0) + 1
    return counted
