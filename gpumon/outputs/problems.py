"""What is wrong, the worst first, and what to do: one list for the page, the terminal and the JSON documents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpumon.health.alert_rules import SEVERITIES, runbook_url
from gpumon.health.check import MINUTE, Check
from gpumon.health.checks import gpu as gpu_checks
from gpumon.health.clearing import PROOF_AFTER_REBOOT, PROOF_AFTER_RESET
from gpumon.health.expectation import BASES
from gpumon.health.gpu_faults import FAULTS
from gpumon.health.remediation import performed_repair
from gpumon.health.table import BY_NAME, SUBJECT_OF
from gpumon.health.verdict import ACTIONS, UNKNOWN, Action, Verdict, Way
from gpumon.model.gpu_state import GpuState
from gpumon.outputs.formatting import sentence
from gpumon.outputs.partial_runs import partial_run_note
from gpumon.outputs.verdict_text import action_if_it_recurs, clearing_conditions, title
from gpumon.probe.core.current_result import standing
from gpumon.probe.core.probes import ALL_REDUCE
from gpumon.state.report import Report

DRIVER = "driver"
"""The notice that says of the node that its driver cannot be used."""
UNJUDGED = "unknown"
"""State of a node of which nothing was judged yet: a start is no all-clear."""
MOST_CONSEQUENCES = 4
"""That are named with their cause."""
_FAULT_CHECKS = frozenset(check.name for check in gpu_checks.CHECKS)


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
    """Return verdicts, faults without a verdict yet, a failed probe run and notices; worst first, then oldest."""
    found = (
        *_verdicts(report),
        *_faults(report),
        *_awaited(report),
        *_probe(report),
        *_notices(report),
    )
    return tuple(sorted(found, key=lambda one: (SEVERITIES.index(one.severity), one.since or 0.0)))


def worst(found: tuple[Problem, ...], *, judged: bool) -> str:
    """critical, warning, else ok, if anything was judged. What is only for information changes nothing."""
    severities = {one.severity for one in found}
    well = "ok" if judged else UNJUDGED
    return next((severity for severity in ("critical", "warning") if severity in severities), well)


def fault_words(state: GpuState) -> str:
    """The fault of a GPU in sentences; empty when it has none."""
    if state.fault is None:
        return ""
    return " ".join(filter(None, (FAULTS[state.fault].meaning, sentence(state.detail))))


def _verdicts(report: Report) -> Iterator[Problem]:
    """Each with what follows from it."""
    for one in report.health.primary:
        check = BY_NAME.get(one.check)
        if check is not None:
            yield _problem(one, check, report)


def _problem(one: Verdict, check: Check, report: Report) -> Problem:
    state = report.gpu(one.device) if one.device else None
    return Problem(
        severity=dict(check.severities).get(one.level, "warning"),
        title=_named(one, report, title(one)),
        detail=" ".join(filter(None, (one.reason, _latched(one, check, report), _consequences(one, report)))),
        action=" ".join(filter(None, (_asked(one, report), check.first_step))),
        runbook_url=runbook_url(check.alert),
        gpu=None if state is None else state.index,
        since=one.since,
    )


def _named(one: Verdict, report: Report, words: str) -> str:
    """With the device that it is about."""
    state = report.gpu(one.device) if one.device else None
    device = one.device if state is None else f"GPU {state.index}"
    return f"{device}: {words}" if device else words


def _latched(one: Verdict, check: Check, report: Report) -> str:
    """Why something is said that is not so now."""
    if one.active or check.latch is None:
        return ""
    state = report.gpu(one.device) if one.device else None
    which = "" if not one.device else f" --gpu {state.index}" if state else f" --device {one.device}"
    until = f"until {' or '.join(clearing_conditions(check))}"
    if check.latch.repair and one.boot_id != report.boot_id:
        until = f"until it has been well for {PROOF_AFTER_REBOOT / MINUTE:.0f} minutes: the node was rebooted since"
    elif check.latch.repair and performed_repair(one, report.boot_id) is Way.RESET:
        until = f"until it has been well for {PROOF_AFTER_RESET / MINUTE:.0f} minute: the GPU was reset since"
    forgets = "says that it is as it should be" if check.acceptable else "forgets it"
    return f"It stays on record {until}; `gpumon ack {one.check}{which}` {forgets}."


def _consequences(one: Verdict, report: Report) -> str:
    said = [_named(other, report, other.reason.rstrip(".")) for other in report.health.consequences(one)]
    if not said:
        return ""
    more = len(said) - MOST_CONSEQUENCES
    shown = "; ".join(said[:MOST_CONSEQUENCES]) + (f"; and {more} more" if more > 0 else "")
    return f"What follows from it: {shown}."


def _asked(one: Verdict, report: Report) -> str:
    """Nobody should repair again because it was repaired just now."""
    if one.action is Action.NONE:
        return ""
    return sentence(action_if_it_recurs(one) if performed_repair(one, report.boot_id) else ACTIONS[one.action])


def _faults(report: Report) -> Iterator[Problem]:
    """Of GPUs that are sick by themselves: without a beginning, a fault is a consequence of the driver's."""
    judged = {device for check, device in report.health.open if check in _FAULT_CHECKS}
    for state in report.gpus:
        if state.fault is not None and state.since is not None and state.uuid not in judged:
            yield Problem(
                severity="warning" if state.fault == "no_permission" else "critical",
                title=f"GPU {state.index}: {state.fault.replace('_', ' ')}",
                detail=fault_words(state),
                action=FAULTS[state.fault].action,
                gpu=state.index,
                since=state.since,
            )


def _awaited(report: Report) -> Iterator[Problem]:
    """GPUs that should be here and are not counted, which is no verdict in the minutes of a boot."""
    wanted, visible = report.expectation, report.node.gpus_visible
    told = any(check == "gpu_count_mismatch" for check, _ in report.health.open)
    if visible is None or told or any(state.released for state in report.gpus):
        return
    lacking = wanted.count - int(visible) - sum(state.fault == "missing" for state in report.gpus)
    if lacking > 0:
        here = f"The driver counts {visible:.0f}; there should be {wanted.count}, {BASES[wanted.basis]}."
        yield Problem(
            severity="warning",
            title=f"The driver does not count {lacking} GPU{'s' * (lacking != 1)} that should be here",
            detail=f"{here} After a boot it may take a while; if it lasts, it is a verdict.",
            action="`gpumon inventory` shows which are here.",
        )


def _probe(report: Report) -> Iterator[Problem]:
    """What no verdict says."""
    last = standing(report.probe.ran, ALL_REDUCE)
    judged = any(SUBJECT_OF.get(one.check) == "probe" and one.level > UNKNOWN for one in report.health.verdicts)
    if last is not None and last.outcome != "ok" and not judged:
        later = partial_run_note(report.probe, ALL_REDUCE)
        wrong = f"{last.wrong_elements} elements were wrong: silent corruption." if last.wrong_elements else ""
        yield Problem(
            severity="critical" if last.outcome == "wrong" else "warning",
            title=f"The last all-reduce: {last.outcome}",
            detail=" ".join(filter(None, (wrong, last.reason and f"Reason: {last.reason}.", later))),
            action=last.hint,
            since=last.ended,
        )


def _notices(report: Report) -> Iterator[Problem]:
    """Those of which there is no verdict, or not yet."""
    judged = {BY_NAME[check].notice for check, _ in report.health.open if check in BY_NAME}
    for subject, message in report.notices.items():
        if subject not in judged:
            yield Problem(
                severity="critical" if subject == DRIVER else "warning",
                title=f"The agent's {subject}" if subject != DRIVER else "The NVIDIA driver cannot be used",
                detail=message,
            )
