"""The problems of a node, worst first, and texts about verdicts, for the page, the terminal and the API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpumon.health.alert_texts import SEVERITIES, runbook_url
from gpumon.health.check_row import MINUTE, Check, alert_name, for_job
from gpumon.health.checks import gpu as gpu_checks
from gpumon.health.checks.probe import is_about
from gpumon.health.clearing import PROOF_AFTER_REBOOT, PROOF_AFTER_RESET
from gpumon.health.products import BASES
from gpumon.health.remediation import action_sentence, performed_repair
from gpumon.health.table import BY_NAME
from gpumon.health.verdict import JOB, UNKNOWN, Clearance, Verdict
from gpumon.model.gpu_state import GpuState
from gpumon.outputs.formatting import duration, rfc3339, sentence
from gpumon.outputs.probe_text import partial_run_note
from gpumon.outputs.responses.base import Document
from gpumon.probe.core.probes import PROBES
from gpumon.probe.core.result import current_result
from gpumon.state.report import Report

DRIVER = "driver"
"""Subject of the agent's notice that the NVIDIA driver cannot be used."""
NOT_EVALUATED = "unknown"
"""State of a node that has no problem and whose checks have not run since the agent started."""
MAX_CONSEQUENCES = 4
"""Maximum number of inhibited verdicts that a problem names as its consequences."""
_FAULT_CHECKS = frozenset(check.name for check in gpu_checks.CHECKS)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProblem:
    """One current problem of a node, as the page, the terminal and the API show it."""

    severity: str
    title: str
    detail: str = ""
    action: str = ""
    runbook_url: str = ""
    gpu: int | None = None
    since: float | None = None
    unobserved: bool = False
    """True if the problem cannot be observed now, for example because its GPU does not answer."""


def problems(report: Report) -> tuple[NodeProblem, ...]:
    """Return the problems, the worst first; of the same severity, those not observed now last, else the oldest."""
    found = (*_verdicts(report), *_faults(report), *_missing_gpus(report), *_probe(report), *_notices(report))
    return tuple(sorted(found, key=lambda each: (SEVERITIES.index(each.severity), each.unobserved, each.since or 0.0)))


def worst(node_problems: tuple[NodeProblem, ...], *, evaluated: bool) -> str:
    """Return the state of the node: critical or warning by its problems, ok without, unknown unless `evaluated`."""
    severities = {problem.severity for problem in node_problems}
    healthy = "ok" if evaluated else NOT_EVALUATED
    return next((severity for severity in ("critical", "warning") if severity in severities), healthy)


def fault_text(state: GpuState) -> str:
    """Return sentences that describe the fault of a GPU; an empty string if the GPU has no fault."""
    if state.fault is None:
        return ""
    return " ".join(filter(None, (gpu_checks.FAULTS[state.fault].meaning, sentence(state.detail))))


def _verdicts(report: Report) -> Iterator[NodeProblem]:
    for verdict in report.health.primary:
        check = BY_NAME.get(verdict.check)
        if check is None:
            continue
        state = report.gpu(verdict.device) if verdict.device else None
        texts = [_with_device(each, report, each.reason.rstrip(".")) for each in report.health.consequences(verdict)]
        more = f"; and {len(texts) - MAX_CONSEQUENCES} more" if len(texts) > MAX_CONSEQUENCES else ""
        consequences = f"Consequences: {'; '.join(texts[:MAX_CONSEQUENCES])}{more}." if texts else ""
        is_job = verdict.device.startswith(JOB)
        advice = for_job(check.advice, verdict.device.removeprefix(JOB)) if is_job else check.advice
        details = current_reason(verdict, report), _latch_text(verdict, check, report), consequences
        yield NodeProblem(
            severity=dict(check.severities).get(verdict.level, "warning"),
            title=_with_device(verdict, report, title(verdict)),
            detail=" ".join(filter(None, details)),
            action=" ".join(filter(None, (action_sentence(verdict, report.health, report.boot_id), advice))),
            runbook_url=runbook_url(check.alert),
            gpu=None if state is None else state.index,
            since=verdict.raised.wall,
            unobserved=is_unobserved(verdict, report),
        )


def _with_device(verdict: Verdict, report: Report, text: str) -> str:
    state = report.gpu(verdict.device) if verdict.device else None
    named = verdict.device.replace(JOB, "Job ", 1) if verdict.device.startswith(JOB) else verdict.device
    device = named if state is None else f"GPU {state.index}"
    return f"{device}: {text}" if device else text


def _latch_text(verdict: Verdict, check: Check, report: Report) -> str:
    """Return a sentence on how a latched verdict is cleared whose fault is no longer present."""
    if verdict.active or check.latch is None:
        return ""
    state = report.gpu(verdict.device) if verdict.device else None
    flag = "" if not verdict.device else f" --gpu {state.index}" if state else f" --device {verdict.device}"
    conditions = " or ".join(clearing_conditions(check))
    until = f"until {conditions}" if conditions else "and does not end by itself"
    if check.latch.repair and verdict.last_active.boot_id != report.boot_id:
        until = f"until it has been ok for {PROOF_AFTER_REBOOT / MINUTE:.0f} minutes: the node was rebooted since"
    elif check.latch.repair and performed_repair(verdict, report.boot_id) is Clearance.RESET:
        until = f"until it has been ok for {PROOF_AFTER_RESET / MINUTE:.0f} minute: the GPU was reset since"
    effect = "accepts the present state" if check.acceptable else "clears it"
    return f"The verdict is latched {until}; `gpumon clear {verdict.check}{flag}` {effect}."


def _faults(report: Report) -> Iterator[NodeProblem]:
    """Yield a problem for each GPU fault without a verdict. One without `since` is a consequence of the driver's."""
    with_verdict = {device for check, device in report.health.open if check in _FAULT_CHECKS}
    for state in report.gpus:
        if state.fault is not None and state.since is not None and state.uuid not in with_verdict:
            yield NodeProblem(
                severity="warning" if state.fault == "no_permission" else "critical",
                title=f"GPU {state.index}: {state.fault.replace('_', ' ')}",
                detail=fault_text(state),
                action=gpu_checks.FAULTS[state.fault].action,
                runbook_url=runbook_url(alert_name(gpu_checks.FAULTS[state.fault].check)),
                gpu=state.index,
                since=state.since,
            )


def _missing_gpus(report: Report) -> Iterator[NodeProblem]:
    """Yield a problem if the driver counts too few GPUs, unless a verdict reports it or a GPU is released."""
    expectation, visible = report.expectation, report.node.gpus_visible
    has_verdict = any(check == "gpu_count_mismatch" for check, _ in report.health.open)
    if visible is None or has_verdict or any(state.released for state in report.gpus):
        return
    missing = expectation.count - int(visible) - sum(state.fault == "missing" for state in report.gpus)
    if missing > 0:
        counts = f"The driver counts {visible:.0f}; {expectation.count} are expected, {BASES[expectation.basis]}."
        yield NodeProblem(
            severity="warning",
            title=f"{missing} expected GPU{'s' * (missing != 1)} not reported by the driver",
            detail=f"{counts} After a boot GPUs may take some minutes; if they stay missing, a verdict is raised.",
            action="`gpumon inventory` lists the GPUs that are here.",
        )


def _probe(report: Report) -> Iterator[NodeProblem]:
    """Yield a problem for each probe whose last run failed, unless a verdict reports it or an operator cleared that."""
    for probe in PROBES.values():
        run = current_result(report.probe.ran, probe.name)
        has_verdict = any(
            is_about(probe, verdict.check) and verdict.level > UNKNOWN for verdict in report.health.verdicts
        )
        if run is None or run.outcome == "ok" or has_verdict:
            continue
        if any(
            transition.cleared_by is Clearance.OPERATOR
            and is_about(probe, transition.verdict.check)
            and transition.time.wall >= run.ended
            for transition in report.health.cleared.values()
        ):
            continue
        note = partial_run_note(report.probe, probe.name)
        wrong = f"{run.wrong_elements} elements were wrong: silent data corruption." if run.wrong_elements else ""
        yield NodeProblem(
            severity="critical" if run.outcome == "wrong" else "warning",
            title=f"The last {probe.title}: {run.outcome}",
            detail=" ".join(filter(None, (wrong, run.reason and f"Reason: {run.reason}.", note))),
            action=run.hint,
            since=run.ended,
        )


def _notices(report: Report) -> Iterator[NodeProblem]:
    """Yield a problem for each notice of the agent that is not already reported by an open verdict."""
    with_verdict = {BY_NAME[check].notice for check, _ in report.health.open if check in BY_NAME}
    for subject, message in report.notices.items():
        if subject not in with_verdict:
            yield NodeProblem(
                severity="critical" if subject == DRIVER else "warning",
                title=f"Problem of the agent: {subject}" if subject != DRIVER else "The NVIDIA driver cannot be used",
                detail=message,
            )


def title(verdict: Verdict) -> str:
    """Return the help text of a verdict's check as a title; the check's name if this version lacks the check."""
    check = BY_NAME.get(verdict.check)
    return check.help.rstrip(".") if check else verdict.check


def is_unobserved(verdict: Verdict, report: Report) -> bool:
    """Return True if a verdict is open only because its GPU cannot be read now: it has a fault or is released."""
    check, state = BY_NAME.get(verdict.check), report.gpu(verdict.device) if verdict.device else None
    is_read = state is None or (state.fault is None and not state.released)
    return not (verdict.active or is_read or check is None or check.latch is not None)


def current_reason(verdict: Verdict, report: Report) -> str:
    """Return the reason of a verdict, and who held the GPU.

    It begins with the time of the last observation if `is_unobserved` is True.
    """
    reason = verdict.with_holders(verdict.reason)
    if not is_unobserved(verdict, report):
        return reason
    last_seen = rfc3339(verdict.last_active.wall)
    return f"Last observed at {last_seen[:10]} {last_seen[11:19]} UTC: {reason}"


def clearing_conditions(check: Check) -> Sequence[str]:
    """Return a phrase for each event, apart from an operator's request, that clears a latched verdict of this check."""
    if check.latch is None:
        return ()
    repair = ("a reset or reboot" if check.gpu else "a reboot",) if check.latch.repair else ()
    return (*repair, *((f"{duration(check.latch.quiet)} without it",) if check.latch.quiet is not None else ()))


def place(verdict: Document) -> str:
    """Return where a verdict applies, from its response: the GPU by its index, a port by its name, "" for the node."""
    return verdict["device"] or "" if verdict["gpu"] is None else f"GPU {verdict['gpu']}"


def verdict_name(verdict: Document) -> str:
    """Return the check and the device of a verdict as text, from its response."""
    return f"{verdict['check']} of {place(verdict) or 'the node'}"
