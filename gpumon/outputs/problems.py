"""What is wrong, the worst first, and what to do: one list for the page, the terminal and the JSON documents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpumon.alerts.alert import FIRING, SEVERITIES, Alert
from gpumon.alerts.faults import FAULTS
from gpumon.alerts.rules import first_step
from gpumon.outputs.words import sentence
from gpumon.probe.result import ProbeResult
from gpumon.report import GpuState, ProbeState, Report

FAULT_RULES = frozenset({"GpuLost", "GpuStuck"})
"""An alert of these rules says the same as the fault of its GPU: they are one problem."""
DRIVER, DRIVER_RULE = "driver", "GpumonNvmlDown"
"""The notice and the rule that say of the node that its driver cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong now."""

    severity: str
    title: str
    detail: str = ""
    action: str = ""
    """What to do about it."""
    runbook_url: str = ""
    gpu: int | None = None
    since: float | None = None
    """Seconds since the epoch."""


def problems(report: Report) -> tuple[Problem, ...]:
    """Faults of GPUs, firing alerts, a bad run of the probe, notices of the agent; worst first, then oldest first."""
    found = (*_faults(report), *_alerts(report), *_probe(report.probe), *_notices(report))
    return tuple(sorted(found, key=lambda one: (SEVERITIES.index(one.severity), one.since or 0.0)))


def worst(found: tuple[Problem, ...]) -> str:
    """ok, warning or critical. What is only for information changes nothing."""
    severities = {one.severity for one in found}
    return next((severity for severity in ("critical", "warning") if severity in severities), "ok")


def fault_words(state: GpuState) -> str:
    """The fault of a GPU in sentences; empty when it has none."""
    if state.fault is None:
        return ""
    return " ".join(filter(None, (FAULTS[state.fault].meaning, sentence(state.detail))))


def last_measured(state: ProbeState) -> ProbeResult | None:
    """The last run that was not skipped: a busy node keeps the result that it has."""
    runs = (*state.history, *filter(None, (state.last,)))
    return max((one for one in runs if one.outcome != "skipped"), key=lambda one: one.started, default=None)


def _faults(report: Report) -> Iterator[Problem]:
    """Of GPUs that are sick by themselves: without a beginning, a fault is a consequence of the driver's."""
    runbooks = {dict(one.labels).get("uuid"): one.runbook_url for one in _firing(report) if one.rule in FAULT_RULES}
    for state in report.gpus:
        if state.fault is not None and state.since is not None:
            yield Problem(
                severity="warning" if state.fault == "no_permission" else "critical",
                title=f"GPU {state.index}: {state.fault.replace('_', ' ')}",
                detail=fault_words(state),
                action=FAULTS[state.fault].action,
                runbook_url=runbooks.get(state.uuid, ""),
                gpu=state.index,
                since=state.since,
            )


def _alerts(report: Report) -> Iterator[Problem]:
    index = {state.uuid: state.index for state in report.gpus}
    faulted = {state.uuid for state in report.gpus if state.fault is not None and state.since is not None}
    for alert in _firing(report):
        uuid = dict(alert.labels).get("uuid", "")
        if (alert.rule in FAULT_RULES and uuid in faulted) or (alert.rule == DRIVER_RULE and DRIVER in report.notices):
            continue
        yield Problem(
            severity=alert.severity,
            title=alert.summary.rstrip(".") or alert.rule,
            detail=alert.description,
            action=first_step(alert.rule),
            runbook_url=alert.runbook_url,
            gpu=index.get(uuid),
            since=alert.firing_since or alert.since,
        )


def _probe(state: ProbeState) -> Iterator[Problem]:
    last = last_measured(state)
    if last is not None and last.outcome != "ok":
        wrong = f"{last.wrong_elements} elements were wrong: silent corruption." if last.wrong_elements else ""
        yield Problem(
            severity="critical" if last.outcome == "wrong" else "warning",
            title=f"The last all-reduce: {last.outcome}",
            detail=" ".join(filter(None, (wrong, last.reason and f"Reason: {last.reason}."))),
            action=last.hint,
            since=last.started + last.duration_seconds,
        )


def _notices(report: Report) -> Iterator[Problem]:
    down = next((one for one in _firing(report) if one.rule == DRIVER_RULE), None)
    for subject, message in report.notices.items():
        alert = down if subject == DRIVER else None
        yield Problem(
            severity="critical" if subject == DRIVER else "warning",
            title=f"The agent's {subject}" if subject != DRIVER else "The NVIDIA driver cannot be used",
            detail=message,
            runbook_url=alert.runbook_url if alert else "",
            since=alert.since if alert else None,
        )


def _firing(report: Report) -> Iterator[Alert]:
    return (one for one in report.alerts if one.state == FIRING)
