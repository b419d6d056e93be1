"""next = fold(previous, arrival, now): the only way in which the agent's knowledge changes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import assert_never

from gpumon import errors, inventory, ports, unwatched
from gpumon.alerts.alert import Alert
from gpumon.alerts.evaluate import evaluate
from gpumon.alerts.history import History
from gpumon.arrival import (
    Agent,
    Arrival,
    Errors,
    LinksChild,
    ProbeEnded,
    ProbeProgressed,
    ProbeStarted,
    Remembered,
    Samplers,
    Tick,
)
from gpumon.probe.metrics import fold_result
from gpumon.probe.result import OUTCOMES, SKIP_REASONS
from gpumon.release import Release
from gpumon.report import Memory, ProbeState, Report
from gpumon.shown import shown
from gpumon.snapshot.snapshot import DriverStatus, LinksSeen, PciBus, Snapshot
from gpumon.terms import Moment, Terms

MOST_RESULTS = 200


def watching(report: Report, terms: Terms) -> Report:
    """The same Report, remembering from now on what these rules look back on."""
    history = report.memory.history.watching(terms.rules)
    return replace(report, memory=replace(report.memory, history=history))


def fold(previous: Report, arrival: Arrival, now: Moment, terms: Terms) -> Report:
    """The Report after this arrival."""
    match arrival:
        case Snapshot():
            report = _polled(previous, arrival, now)
        case LinksSeen() | LinksChild():
            report = replace(previous, memory=_links(previous.memory, arrival, now))
        case Samplers() | DriverStatus() | PciBus():
            report = replace(previous, memory=_remember(previous.memory, arrival))
        case Release():
            memory = unwatched.released(previous.memory, previous.release, arrival, now.lived)
            report = replace(previous, release=arrival, memory=memory)
        case Errors():
            report = errors.take(previous, arrival)
        case Remembered():
            report = errors.recall(previous, arrival)
        case _:
            report = previous
    match arrival:
        case ProbeStarted() | ProbeProgressed() | ProbeEnded() | Remembered():
            report = _probe(report, arrival)
        case Agent():
            report = _agent(report, arrival)
    report = shown(report, now, terms)
    return _evaluated(report, now, terms) if isinstance(arrival, Tick) else report


# What is remembered


def _remember(memory: Memory, arrival: Samplers | DriverStatus | PciBus) -> Memory:
    match arrival:
        case Samplers():
            known = inventory.leave_aside(memory.inventory, arrival.aside, memory.bus or {})
            known = inventory.recall(known, memory.boards)
            return unwatched.heard(replace(memory, samplers=arrival, inventory=known), arrival)
        case DriverStatus():
            return unwatched.heard(replace(memory, status=arrival), arrival)
        case PciBus():
            known = inventory.release(memory.inventory, arrival.functions, arrival.excluded)
            return replace(memory, bus=arrival.functions, excluded=arrival.excluded, inventory=known)
        case _:
            assert_never(arrival)


def _links(memory: Memory, arrival: LinksSeen | LinksChild, now: Moment) -> Memory:
    if isinstance(arrival, LinksSeen):
        return replace(memory, links=ports.see(memory.links, arrival, now))
    return replace(memory, links=replace(memory.links, child=arrival))


def _polled(report: Report, snapshot: Snapshot, now: Moment) -> Report:
    memory = report.memory
    bus = memory.bus or {}
    known = memory.inventory
    for seen in snapshot.gpus:
        known = inventory.see(known, seen, bus, now)
    known = inventory.expect(known, report.release.bus_ids, bus)
    if snapshot.complete:
        known = inventory.miss(known, {*snapshot.present, *memory.samplers.aside, *report.release.bus_ids}, bus, now)
    known = inventory.release(inventory.recall(known, memory.boards), bus, memory.excluded)
    memory = unwatched.heard(replace(memory, inventory=known, heard_at=now.lived), snapshot)
    report = replace(report, memory=memory)
    return _tallied(report, snapshot) if snapshot.complete else report


def _tallied(report: Report, snapshot: Snapshot) -> Report:
    """What a complete poll says of itself."""
    node = report.node
    failed = {key.partition(",")[0] for key in snapshot.errors}
    faulted = any(gpu.fault is not None for gpu in report.memory.inventory.values())
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


# What is judged


def _evaluated(report: Report, now: Moment, terms: Terms) -> Report:
    report = _looked_back(report, now)
    samples = list(report.samples())
    history = report.memory.history.add(samples, now.at)
    alerts = evaluate(terms.rules, history, report.alerts, now.at, now.wall)
    return replace(
        report,
        alerts=alerts,
        memory=replace(report.memory, history=history),
        node=replace(report.node, exposed_series=float(len(samples)), alerts=_alert_counts(alerts)),
    )


def _looked_back(report: Report, now: Moment) -> Report:
    """Once GPUs and store are known: the Xids of the last hour, as if the agent had been here all the time.

    Without it a restart would forget what fires, and an Xid of the first seconds would have nothing to increase from.
    """
    memory = report.memory
    if memory.looked_back or not memory.recalled or memory.heard_at is None:
        return report
    history = replace(History(), windows=memory.history.windows)
    for at in errors.past(now.at):
        history = history.add(errors.xids_at(report, now.wall - (now.at - at)), at)
    return replace(report, memory=replace(memory, history=history, looked_back=True))


def _alert_counts(alerts: Iterable[Alert]) -> dict[str, float]:
    counted: dict[str, float] = {}
    for alert in alerts:
        if alert.state != "resolved":
            key = f"{alert.rule},{alert.severity},{alert.state}"
            counted[key] = counted.get(key, 0.0) + 1
    return counted
