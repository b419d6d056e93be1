"""`reduce`, the only function that changes the state of the agent: it returns the next Report for a message. Pure."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import replace

from gpumon.health.alert import RESOLVED, Alert, update_alerts
from gpumon.model import time_window
from gpumon.model.now import Now
from gpumon.model.snapshot import DriverStatus, HostSnapshot, PciBus, Snapshot
from gpumon.model.time_window import TimeWindow, WindowsEnded, released_scopes
from gpumon.probe.core import state as probe_state
from gpumon.state import (
    error_counters,
    gpu_inventory,
    health_reducer,
    host_status,
    port_inventory,
    released_gpus,
)
from gpumon.state.derive import derive
from gpumon.state.messages import (
    Acceptance,
    AgentStatus,
    ErrorChanges,
    HostStatus,
    Message,
    ProbeEnded,
    ProbeProgressed,
    ProbeStarted,
    ReleaseHolders,
    SamplerStatus,
    StoredState,
    Tick,
    VerdictTransitions,
)
from gpumon.state.reducer_settings import ReducerSettings
from gpumon.state.report import Report


def reduce(report: Report, message: Message, now: Now, settings: ReducerSettings) -> Report:  # noqa: C901, PLR0912 (one case per message)
    """Return the Report after this message was applied.

    Checks are evaluated at each Tick, and at once after a message that may start a verdict (`_may_start_verdict`).
    """
    before, windows = report, report.windows
    match message:
        case Snapshot():
            report = _snapshot(report, message, now)
        case DriverStatus():
            report = _driver_status(report, message)
        case PciBus():
            report = _pci_bus(report, message)
        case SamplerStatus():
            report = _sampler_status(report, message)
        case HostSnapshot():
            report = _host_snapshot(report, message, now, settings)
        case HostStatus():
            report = _with(report, host=replace(report.internal.host, child=message))
        case ErrorChanges():
            report = error_counters.take(report, message)
        case VerdictTransitions():
            report = health_reducer.take(report, message)
        case StoredState():
            report = _stored_state(report, message, now)
            # A window that started before the store was read replaces a stored window with the same slot.
            windows = functools.reduce(time_window.start, windows, message.windows)
        case Acceptance():
            report = _acceptance(report, message)
        case ProbeStarted():
            probe = probe_state.begin_run(report.probe, message.id, message.probe, message.gpus)
            report = replace(report, probe=probe)
        case ProbeProgressed():
            report = replace(report, probe=replace(report.probe, progress=message.progress))
        case ProbeEnded():
            probe = probe_state.end_run(report.probe, message.result, at=now.at, uptime=now.uptime)
            report = replace(report, probe=probe)
        case AgentStatus():
            report = _agent_status(report, message)
        case ReleaseHolders():
            report = replace(report, release_holders=message.holders)
        case TimeWindow():
            windows = time_window.start(windows, message)
        case WindowsEnded():
            windows = time_window.end(windows, message)
        case Tick():
            pass
    report = released_gpus.apply_windows(report, windows, now)
    report = derive(report, now, settings)
    if isinstance(message, Tick):
        report = _evaluate_checks(_with_samples(report, now), now, settings)
    elif _may_start_verdict(before, report, message):
        report = _evaluate_checks(report, now, settings)
    shows_stored_verdicts = isinstance(message, StoredState | PciBus) and not report.hides_verdicts
    changed = report.health is not before.health and report.health.evaluated
    return _with_alerts(report, now) if shows_stored_verdicts or changed else report


def _with(report: Report, **internal: object) -> Report:
    """Return the Report with these attributes of `Report.internal` replaced."""
    return replace(report, internal=replace(report.internal, **internal))  # type: ignore[arg-type]


# The GPUs


def _snapshot(report: Report, snapshot: Snapshot, now: Now) -> Report:
    before, scopes = report.internal, released_scopes(report.windows)
    own = report.probe.own_load(now.at)
    inventory = gpu_inventory.poll(before.inventory, snapshot, scopes, now, report.boot_id, own=own)
    present = {*snapshot.present, *before.samplers.quarantined, *scopes}
    inventory = gpu_inventory.finish_poll(inventory, snapshot, present, now, restored=before.restored)
    internal = replace(before, inventory=inventory, polled_at=now.uptime)
    report = replace(report, internal=released_gpus.end_resuming(internal, snapshot))
    return _count_poll(report, snapshot) if snapshot.complete else report


def _count_poll(report: Report, snapshot: Snapshot) -> Report:
    """Return the Report with the poll metrics of Node, such as `polls_total`, updated after a complete poll."""
    node = report.node
    failed = {key.partition(",")[0] for key in snapshot.errors}
    faulty = any(gpu.fault is not None for gpu in report.internal.inventory.gpus.values())
    success = {tier: float(tier not in failed and not faulty) for tier in snapshot.durations}
    kernel_log = {name: value for name, value in (node.collector_denied or {}).items() if name == "kernel_log"}
    node = replace(
        node,
        gpus_visible=snapshot.visible,
        snapshot_timestamp_seconds=snapshot.wall,
        poll_duration_seconds={**(node.poll_duration_seconds or {}), **snapshot.durations},
        poll_success={**(node.poll_success or {}), **success},
        polls_total=_add_counts(node.polls_total, dict.fromkeys(snapshot.durations, 1.0)),
        poll_errors_total=_add_counts(node.poll_errors_total, snapshot.errors),
        collector_denied=kernel_log | dict.fromkeys(snapshot.denied, 1.0),
    )
    return replace(report, node=node)


def _add_counts(counts: Mapping[str, float] | None, more: Mapping[str, float]) -> dict[str, float]:
    after = dict(counts or {})
    for key, amount in more.items():
        after[key] = after.get(key, 0.0) + amount
    return after


def _driver_status(report: Report, status: DriverStatus) -> Report:
    internal = released_gpus.end_resuming(replace(report.internal, status=status), status)
    return health_reducer.expect_unnamed(replace(report, internal=internal))


def _pci_bus(report: Report, bus: PciBus) -> Report:
    report = _with(report, inventory=gpu_inventory.read_bus(report.internal.inventory, bus))
    return health_reducer.expect_unnamed(report)


def _sampler_status(report: Report, status: SamplerStatus) -> Report:
    before = report.internal
    inventory = gpu_inventory.quarantine(before.inventory, status.quarantined)
    internal = released_gpus.end_resuming(replace(before, samplers=status, inventory=inventory), status)
    return health_reducer.expect_unnamed(replace(report, internal=internal))


# The host child, the store, the operator, the agent itself


def _host_snapshot(report: Report, snapshot: HostSnapshot, now: Now, settings: ReducerSettings) -> Report:
    internal = report.internal
    host = host_status.read(internal.host, snapshot, now)
    complete = host_status.lists_all_ports(host)
    ports = port_inventory.read(internal.ports, snapshot, now, complete=complete, patterns=settings.ports)
    return replace(report, internal=replace(internal, host=host, ports=ports))


def _stored_state(report: Report, stored: StoredState, now: Now) -> Report:
    report = error_counters.restore(report, stored)
    internal = report.internal
    inventory = gpu_inventory.restore(internal.inventory, stored, report.boot_id)
    ports = port_inventory.restore(internal.ports, stored.ports)
    probe = probe_state.restore(report.probe, stored.probe_results, stored.probe_runs, stored.probe_skips)
    internal = replace(internal, inventory=inventory, ports=ports, restored=True, lost_to=stored.lost_to)
    return health_reducer.restore(replace(report, internal=internal, probe=probe), stored, now)


def _acceptance(report: Report, acceptance: Acceptance) -> Report:
    internal = report.internal
    inventory = gpu_inventory.accept(internal.inventory, acceptance)
    ports = port_inventory.accept(internal.ports, acceptance.ports, acceptance.slow)
    return health_reducer.expect_unnamed(_with(report, inventory=inventory, ports=ports))


def _agent_status(report: Report, status: AgentStatus) -> Report:
    denied = {name: value for name, value in (report.node.collector_denied or {}).items() if name != "kernel_log"}
    node = replace(
        report.node,
        log_messages_total=dict(status.log_messages),
        store_up=float(status.store_up),
        http_refused_total=dict(status.http_refused),
        notifications_total=dict(status.notifications) or None,
        resident_memory_bytes=dict(status.resident_memory),
        kernel_log_up=None if status.kernel_log_up is None else float(status.kernel_log_up),
        kernel_log_overruns_total=status.kernel_log_overruns,
        collector_denied=denied | ({"kernel_log": 1.0} if status.kernel_log_denied else {}),
    )
    probe = replace(report.probe, next_run=status.next_probe, unkillable=status.probe_unkillable)
    return replace(report, node=node, notices=status.notices, probe=probe)


# Checks and alerts


def _with_samples(report: Report, now: Now) -> Report:
    """Return the Report with the current values added to the sample windows of the checks."""
    history = report.internal.history
    return _with(report, history=history.add(report.samples(frozenset(history.windows)), now.at))


def _may_start_verdict(before: Report, report: Report, message: Message) -> bool:
    """Return whether the message has an error event, or changed the fault of a GPU.

    False before the first evaluation, which waits until all sources have been read.
    """
    if not report.health.evaluated:
        return False
    return isinstance(message, ErrorChanges) or (report.gpus is not before.gpus and _faults(report) != _faults(before))


def _faults(report: Report) -> dict[str, str | None]:
    return {state.uuid: state.fault for state in report.gpus}


def _evaluate_checks(report: Report, now: Now, settings: ReducerSettings) -> Report:
    report = health_reducer.evaluate(report, now, settings)
    return replace(report, node=replace(report.node, exposed_series=float(report.count_series())))


def _with_alerts(report: Report, now: Now) -> Report:
    alerts = update_alerts(
        report.alerts,
        report.health,
        report.gpus,
        now,
        boot_id=report.boot_id,
        in_maintenance=report.maintenance is not None,
    )
    return replace(report, alerts=alerts, node=replace(report.node, alerts=_alert_counts(alerts)))


def _alert_counts(alerts: Iterable[Alert]) -> dict[str, float]:
    counts: dict[str, float] = {}
    for alert in alerts:
        if alert.state != RESOLVED:
            key = f"{alert.rule},{alert.severity},{alert.state}"
            counts[key] = counts.get(key, 0.0) + 1
    return counts
