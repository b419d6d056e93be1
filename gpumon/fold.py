"""next = fold(previous, arrival, now): the only way in which the agent's knowledge changes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import assert_never

from gpumon import inventory
from gpumon.alerts.alert import Alert
from gpumon.alerts.evaluate import evaluate
from gpumon.alerts.rules import Rule
from gpumon.arrival import (
    Agent,
    Arrival,
    ProbeEnded,
    ProbeProgressed,
    ProbeStarted,
    Remembered,
    Samplers,
    Tick,
    Xids,
)
from gpumon.inventory import KnownGpu
from gpumon.probe.metrics import fold_result
from gpumon.probe.result import OUTCOMES, SKIP_REASONS
from gpumon.report import GpuState, Memory, ProbeState, Report
from gpumon.snapshot.node import Driver, Node
from gpumon.snapshot.snapshot import DriverStatus, PciBus, Snapshot, XidEvent

MOST_EVENTS = 500
MOST_RESULTS = 200
TIERS = ("fast", "slow", "rare")


@dataclass(frozen=True, slots=True)
class Moment:
    """Now, on the boot clock for deadlines and in wall time for display."""

    at: float
    wall: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the configuration says about folding."""

    interval: float = 1.0
    expected: int | None = None
    rules: tuple[Rule, ...] = ()
    critical_xids: tuple[int, ...] = ()

    @property
    def stale_after(self) -> float:
        """Seconds after which a reading is no longer true."""
        return max(3 * self.interval, 10.0)


def watching(report: Report, terms: Terms) -> Report:
    """The same Report, remembering from now on what these rules look back on."""
    history = report.memory.history.watching(terms.rules)
    return replace(report, memory=replace(report.memory, history=history))


def fold(previous: Report, arrival: Arrival, now: Moment, terms: Terms) -> Report:
    """The Report after this arrival."""
    match arrival:
        case Snapshot():
            report = _polled(previous, arrival, now)
        case Samplers() | DriverStatus() | PciBus() | Xids() | Remembered():
            report = replace(previous, memory=_remember(previous.memory, arrival))
        case _:
            report = previous
    match arrival:
        case ProbeStarted() | ProbeProgressed() | ProbeEnded() | Remembered():
            report = _probe(report, arrival)
        case Agent():
            report = _agent(report, arrival)
    if isinstance(arrival, (Xids, Remembered)):
        report = replace(report, events=(*report.events, *arrival.events)[-MOST_EVENTS:])
    report = _shown(report, now, terms)
    return _evaluated(report, now, terms) if isinstance(arrival, Tick) else report


# What is remembered


def _remember(memory: Memory, arrival: Samplers | DriverStatus | PciBus | Xids | Remembered) -> Memory:
    match arrival:
        case Samplers():
            known = inventory.leave_aside(memory.inventory, arrival.aside, memory.bus or {})
            return replace(memory, samplers=arrival, inventory=known)
        case DriverStatus():
            return replace(memory, status=arrival)
        case PciBus():
            known = inventory.release(memory.inventory, arrival.functions)
            return replace(memory, bus=arrival.functions, inventory=known)
        case Xids():
            return replace(memory, xids=_count(memory.xids, arrival.events))
        case Remembered():
            return replace(memory, xids=_recalled_xids(memory.xids, arrival.xids))
        case _:
            assert_never(arrival)


def _count(
    xids: Mapping[str, Mapping[str, tuple[float, float]]], events: Iterable[XidEvent]
) -> Mapping[str, Mapping[str, tuple[float, float]]]:
    after = {uuid: dict(counted) for uuid, counted in xids.items()}
    for event in events:
        counted = after.setdefault(event.uuid or inventory.UNNAMED + event.bus_id.lower(), {})
        count, _ = counted.get(str(event.xid), (0.0, 0.0))
        counted[str(event.xid)] = (count + 1, event.wall)
    return after


def _recalled_xids(
    now: Mapping[str, Mapping[str, tuple[float, float]]], stored: Mapping[tuple[str, int], tuple[float, float]]
) -> Mapping[str, Mapping[str, tuple[float, float]]]:
    """What the store knew, and what was counted before it could be read."""
    after = {uuid: dict(counted) for uuid, counted in now.items()}
    for (uuid, xid), (count, last) in stored.items():
        meanwhile, later = after.setdefault(uuid, {}).get(str(xid), (0.0, 0.0))
        after[uuid][str(xid)] = (count + meanwhile, max(last, later))
    return after


def _polled(report: Report, snapshot: Snapshot, now: Moment) -> Report:
    memory = report.memory
    known = memory.inventory
    for seen in snapshot.gpus:
        known = inventory.see(known, seen, memory.bus or {}, snapshot.ended_at, now.wall)
    known = inventory.miss(known, {seen.bus_id for seen in snapshot.gpus} | set(memory.samplers.aside), now.wall)
    known = inventory.release(known, memory.bus or {})
    node = report.node
    failed = {key.partition(",")[0] for key in snapshot.errors}
    return replace(
        report,
        memory=replace(memory, inventory=known, polled_at=snapshot.ended_at),
        node=replace(
            node,
            gpus_visible=snapshot.visible,
            snapshot_timestamp_seconds=snapshot.wall,
            poll_duration_seconds={**(node.poll_duration_seconds or {}), **snapshot.durations},
            poll_success={
                **(node.poll_success or {}),
                **{tier: float(tier not in failed) for tier in snapshot.durations},
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


def _probe(report: Report, arrival: ProbeStarted | ProbeProgressed | ProbeEnded | Remembered) -> Report:
    probe = report.probe
    match arrival:
        case ProbeStarted(id=run):
            probe = replace(probe, running=run, metrics=replace(probe.metrics, running=1.0))
        case ProbeProgressed(progress=progress):
            probe = replace(probe, progress=progress)
        case ProbeEnded(result=result):
            own = probe.running in {None, result.id}
            probe = replace(
                probe,
                running=None if own else probe.running,
                progress=None if own else probe.progress,
                last=result,
                history=(*probe.history, result)[-MOST_RESULTS:],
                metrics=fold_result(probe.metrics, result),
            )
        case Remembered():
            probe = _recalled(probe, arrival)
    return replace(report, probe=probe)


def _recalled(probe: ProbeState, remembered: Remembered) -> ProbeState:
    """The last results give the readings; what was counted, the store knows better."""
    metrics, results = probe.metrics, remembered.probe_results
    for result in results:
        metrics = fold_result(metrics, result)
    metrics = replace(
        metrics,
        runs_total=dict.fromkeys(OUTCOMES, 0.0) | dict(remembered.probe_runs),
        skips_total=dict.fromkeys(SKIP_REASONS, 0.0) | dict(remembered.probe_skips),
    )
    return replace(probe, last=results[-1] if results else None, history=results[-MOST_RESULTS:], metrics=metrics)


def _agent(report: Report, agent: Agent) -> Report:
    denied = {name: value for name, value in (report.node.collector_denied or {}).items() if name != "kernel_log"}
    node = replace(
        report.node,
        log_messages_total=dict(agent.log_messages),
        store_up=float(agent.store_up),
        kernel_log_up=None if agent.kernel_log_up is None else float(agent.kernel_log_up),
        kernel_log_overruns_total=agent.kernel_log_overruns,
        collector_denied=denied | ({"kernel_log": 1.0} if agent.kernel_log_denied else {}),
    )
    return replace(report, node=node, notices=agent.notices, probe=replace(report.probe, next_run=agent.next_probe))


# What is shown


def _shown(report: Report, now: Moment, terms: Terms) -> Report:
    memory = report.memory
    status = memory.status
    fresh = memory.polled_at is not None and now.at - memory.polled_at <= terms.stale_after
    down = _down(memory, fresh=fresh, terms=terms)
    states = tuple(
        _state(gpu, memory, down, terms) for gpu in sorted(memory.inventory.values(), key=lambda gpu: gpu.index)
    )
    alive = status is not None and status.up
    node = _node(report, down, terms, fresh=fresh)
    notices = {subject: words for subject, words in report.notices.items() if subject != "driver"}
    return replace(
        report,
        gpus=states,
        driver=Driver(driver=status.driver, nvml=status.nvml, cuda=status.cuda) if status and alive else Driver(),
        node=node,
        notices=({"driver": down} if down is not None and node.nvml_up is not None else {}) | notices,
    )


def _down(memory: Memory, *, fresh: bool, terms: Terms) -> str | None:
    """Why no GPU of the node can be read now; None when they can."""
    if memory.status is not None and not memory.status.up:
        return f"{memory.status.error}: {memory.status.remedy}"
    if memory.samplers.gave_up:
        return "too many children cannot be ended; see abandoned_children"
    if not fresh and memory.polled_at is not None:
        return f"no poll for more than {terms.stale_after:g} s"
    return None


def _state(gpu: KnownGpu, memory: Memory, down: str | None, terms: Terms) -> GpuState:
    fault, detail = gpu.fault, gpu.detail
    if fault is None and (down is not None or gpu.seen is None):
        fault, detail = "unknown", down or "not read yet"
    xids = {str(xid): (0.0, 0.0) for xid in terms.critical_xids} | dict(memory.xids.get(gpu.uuid, {}))
    xids = dict(list(xids.items())[: inventory.MOST_XIDS])
    return GpuState(
        bus_id=gpu.bus_id,
        uuid=gpu.uuid,
        index=gpu.index,
        gpu=inventory.readings(gpu, xids, fault),
        fault=fault,
        detail=detail,
        since=gpu.since,
        links=gpu.links if fault is None else {},
    )


def _node(report: Report, down: str | None, terms: Terms, *, fresh: bool) -> Node:
    memory, status = report.memory, report.memory.status
    on_bus = _by_driver(memory.bus)
    mine = sum(count for driver, count in (on_bus or {}).items() if driver != "vfio-pci")
    learned = len(memory.inventory)
    expected = terms.expected if terms.expected is not None else max(mine, learned, int(report.node.gpus_expected or 0))
    nothing_here = memory.bus is not None and not mine and not expected
    not_tried = status is None and not memory.samplers.stuck_seconds
    cut = sum(max(0, len(xids) - inventory.MOST_XIDS) for xids in memory.xids.values())
    return replace(
        report.node,
        simulated=float(report.simulated is not None),
        nvml_up=None if nothing_here or not_tried else float(down is None and fresh),
        nvml_stuck_seconds=memory.samplers.stuck_seconds,
        gpus_expected=None if memory.bus is None else float(expected),
        gpus_visible=report.node.gpus_visible if down is None else None,
        gpus_on_pci_bus=on_bus,
        sampler_restarts_total=dict(memory.samplers.restarts),
        abandoned_children=float(len(memory.samplers.abandoned)),
        driver_calls_total=memory.samplers.driver_calls,
        dropped_series_total={"xids": float(cut)},
    )


def _by_driver(bus: Mapping[str, str] | None) -> dict[str, float] | None:
    if bus is None:
        return None
    counted = {"nvidia": 0.0, "vfio-pci": 0.0, "none": 0.0}
    for driver in bus.values():
        counted[driver or "none"] = counted.get(driver or "none", 0.0) + 1
    return counted


# What is judged


def _evaluated(report: Report, now: Moment, terms: Terms) -> Report:
    samples = list(report.samples())
    history = report.memory.history.add(samples, now.at)
    alerts = evaluate(terms.rules, history, report.alerts, now.at, now.wall)
    return replace(
        report,
        alerts=alerts,
        memory=replace(report.memory, history=history),
        node=replace(report.node, exposed_series=float(len(samples)), alerts=_alert_counts(alerts)),
    )


def _alert_counts(alerts: Iterable[Alert]) -> dict[str, float]:
    counted: dict[str, float] = {}
    for alert in alerts:
        if alert.state != "resolved":
            key = f"{alert.rule},{alert.severity},{alert.state}"
            counted[key] = counted.get(key, 0.0) + 1
    return counted
