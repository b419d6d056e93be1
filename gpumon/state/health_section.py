"""The section `health`: verdicts about GPUs, ports and the node, and the facts that checks read. Pure."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace

from gpumon.health import evaluation, node_health
from gpumon.health.alert import FIRING, Alert
from gpumon.health.alert_texts import PAGING
from gpumon.health.facts import Facts
from gpumon.health.node_health import Health
from gpumon.health.run_conditions import free_since
from gpumon.health.verdict import JOB, Key, Level, VerdictChange
from gpumon.model.error_event import ErrorEvent
from gpumon.model.instant import Instant, Now
from gpumon.model.snapshot import ProcessReadings
from gpumon.model.time_window import WindowKind, in_force, of_kind
from gpumon.state import port_inventory
from gpumon.state.messages import StoredState, VerdictTransitions
from gpumon.state.report import Report
from gpumon.state.section import LOG_LEVELS, LogLine, ReducerSettings, Step

MAX_STORE_WAIT_SECONDS = 10.0
"""Maximum seconds that the first evaluation waits for the store, because a hung disk must not prevent it."""
CLOCK_NOISE = 0.01
"""Difference in seconds up to which two wall times count as equal, because two clocks are read one after the other."""


def apply(health: Health, step: Step) -> Health:
    """Return the verdicts after a message. An evaluation of the checks is separate (`evaluate`)."""
    match step.message:
        case VerdictTransitions(transitions=transitions):
            return node_health.apply_transitions(health, transitions)
        case StoredState():
            return _restore(health, step.message, step)
    return health


def _restore(health: Health, stored: StoredState, step: Step) -> Health:
    boot_id = step.report.boot_id
    verdicts = evaluation.restored_verdicts(stored.verdicts, boot_id)
    health = node_health.restore_health(health, verdicts, stored.transitions, stored.cleared)
    pending = node_health.restore_pending(stored.pending, step.now, boot_id)
    return replace(health, pending={**pending, **health.pending})


def evaluate(report: Report, now: Now, settings: ReducerSettings) -> Report:
    """Return the Report after an evaluation of all checks.

    The first one waits for the store, at most MAX_STORE_WAIT_SECONDS after the start.
    """
    if not report.agent.restored and now.uptime < MAX_STORE_WAIT_SECONDS:
        return report
    facts_now = facts(report, now, settings)
    facts_now = replace(facts_now, probe=replace(facts_now.probe, free_since=free_since(facts_now)))
    return replace(report, probe=facts_now.probe, health=evaluation.evaluate(report.health, facts_now))


def facts(report: Report, now: Now, settings: ReducerSettings) -> Facts:
    """Return the facts that checks may read at this time."""
    inventory, host = report.inventory, report.host
    current, bus = host.current, inventory.bus
    processes = ProcessReadings() if current is None else current.value(ProcessReadings)
    read = Facts(
        now=now,
        boot_id=report.boot_id,
        node=report.node,
        gpus=report.gpus,
        stuck=processes.stuck,
        holders=report.jobs.named_holders(now.wall),
        jobs=report.jobs.jobs,
        contained=processes.contained,
        ports=(*report.ports, *(gone.port for gone in report.gone_ports)),
        gone_ports={f"{gone.port.device}/{gone.port.port}": gone.wall for gone in report.gone_ports},
        known_ports=port_inventory.by_name(host.inventory),
        ports_listed=bool(report.ports) and current is not None and host.lists_all_ports,
        recalled=report.agent.restored,
        lost_to=report.agent.lost_to,
        started=report.started,
        interval=settings.interval,
        catalogue=report.catalogue,
        history=report.samples,
        notices=report.notices,
        excluded=report.excluded,
        bus=None if bus is None else bus.functions,
        nvswitches=inventory.pci.nvswitches,
        policy=settings.policy,
        expectation=report.expectation,
        gone=frozenset(inventory.removed) | port_inventory.removed_ports(host.inventory) | _ended_jobs(report),
        versions=_versions(report),
        open=report.health.open,
        failing_checks=report.health.failing_checks,
        probe=report.probe,
        probe_intervals=settings.probe_intervals,
        probe_gated=settings.probe_gated,
        held=bool(in_force(report.windows, WindowKind.HOLD)),
        transitions=report.health.history,
        agent_runs=report.agent.runs,
        maintenances=of_kind(report.windows, WindowKind.MAINTENANCE),
        releases=of_kind(report.windows, WindowKind.RELEASE),
    )
    cleared = {key: clearing.time.on_clock(read.instant) for key, clearing in report.health.cleared.items()}
    return replace(read, events=tuple(_on_clock(event, read.instant) for event in report.events), cleared=cleared)


def _ended_jobs(report: Report) -> frozenset[str]:
    """Return the jobs with a verdict that hold no GPU any more, once the owners have been read."""
    named = {device for _, device in report.health.open if device.startswith(JOB)}
    if not named or not report.jobs.known:
        return frozenset()
    held = (*report.jobs.allocations, *report.jobs.suspended.values())
    return frozenset(named - {f"{JOB}{report.jobs.job_id(each.owner)}" for each in held})


def _on_clock(event: ErrorEvent, now: Instant) -> ErrorEvent:
    last = event.last.on_clock(now)
    if abs(last - event.last.wall) < CLOCK_NOISE:
        return event
    first = event.first.on_clock(now)
    return replace(event, first=event.first._replace(wall=first), last=event.last._replace(wall=last))


def _versions(report: Report) -> dict[str, str]:
    """Return the versions of the driver, and of NCCL in the last probe run with NCCL. Leave out unknown versions."""
    nccl = (run.versions["nccl"] for run in reversed(report.probe.ran) if run.versions.get("nccl"))
    versions = {"driver": report.driver.driver, "nccl": next(nccl, None)}
    return {name: version for name, version in versions.items() if version}


def changes(before: Report, after: Report) -> Iterator[LogLine]:
    """Yield the log lines for verdicts, for checks that raise exceptions, and for alerts."""
    if before.health.history is not after.health.history and before.agent.restored is after.agent.restored:
        yield from _transitions(before, after)
    failed, failing = before.health.failing_checks, after.health.failing_checks
    for key in failing.keys() - failed.keys():
        words = _device_words(key, after) | {"error": failing[key]}
        yield LogLine(logging.ERROR, "a check raised an exception, its verdicts stay: report this bug", words)
    for key in failed.keys() - failing.keys():
        yield LogLine(logging.INFO, "the check works again", _device_words(key, after))
    if before.health is not after.health or before.windows is not after.windows:
        yield from _alerts(before, after)


_VERDICT_LEVELS = {Level.FAIL: logging.ERROR, Level.WARN: logging.WARNING}


def _transitions(before: Report, after: Report) -> Iterator[LogLine]:
    logged = set(map(id, before.health.history))
    for transition in after.health.history:
        if id(transition) not in logged:
            verdict = transition.verdict
            words = _device_words(verdict.key, after) | {"action": verdict.action.value}
            if transition.change is VerdictChange.CLEARED:
                words |= {"cleared_by": transition.cleared_by or ""} | (
                    {"note": transition.note} if transition.note else {}
                )
                yield LogLine(logging.INFO, f"verdict cleared: {_prefix(words)}{verdict.reason}", words)
            else:
                level = _VERDICT_LEVELS.get(verdict.level, logging.INFO)
                yield LogLine(level, f"verdict {verdict.level.word}: {_prefix(words)}{verdict.reason}", words)


def _prefix(words: Mapping[str, object]) -> str:
    """Return the name of the device in these log fields, followed by a colon; an empty string for the node."""
    device = f"GPU {words['gpu']}" if "gpu" in words else words.get("device")
    return f"{device}: " if device else ""


def _device_words(key: Key, report: Report) -> dict[str, object]:
    check, device = key
    words: dict[str, object] = {"check": check}
    if gpu := next((state for state in report.gpus if state.uuid == device), None):
        words["gpu"] = gpu.index
    return words | ({"device": device} if device else {})


def _alerts(before: Report, after: Report) -> Iterator[LogLine]:
    fired, firing = (
        {each.identity: each for each in report.alerts if each.state == FIRING} for report in (before, after)
    )
    for identity, alert in firing.items():
        if identity not in fired:
            yield LogLine(LOG_LEVELS[alert.severity], f"alert firing: {alert.summary}", _words(alert))
    for identity, alert in fired.items():
        if identity not in firing:
            yield LogLine(logging.INFO, f"alert {_end(alert, after)}: {alert.summary}", _words(alert))


def _end(alert: Alert, report: Report) -> str:
    """Return how an alert ended, as text: inhibited by another verdict or by a maintenance, else resolved."""
    verdict = report.health.open.get(alert.key)
    if verdict is not None and verdict.inhibited_by is not None:
        return f"inhibited by {verdict.inhibited_by[0]}"
    in_maintenance = report.maintenance is not None and alert.severity in PAGING
    return "inhibited by maintenance" if verdict is not None and in_maintenance else "resolved"


def _words(alert: Alert) -> Mapping[str, object]:
    return {"rule": alert.rule, "severity": alert.severity, **{f"label_{name}": value for name, value in alert.labels}}
