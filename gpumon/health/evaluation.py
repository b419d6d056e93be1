"""Evaluation of the checks: findings that last become verdicts, and verdicts stay until they are cleared. Pure.

A check that cannot be evaluated neither raises, changes nor clears a verdict. Transitions of verdicts are stored before
they take effect: `evaluate` returns them in `Health.due`, and the message VerdictTransitions applies them later.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gpumon.health import clearing, inhibition, remediation
from gpumon.health.check_row import HOUR, MINUTE, Check
from gpumon.health.facts import Facts, ThresholdOffError
from gpumon.health.node_health import Health, Pending, node_score
from gpumon.health.table import BY_NAME, CHECKS
from gpumon.health.verdict import (
    HELD_BY,
    JOB,
    NODE,
    OFF,
    OK,
    UNKNOWN,
    Clearance,
    Evidence,
    Finding,
    Key,
    Level,
    Verdict,
    VerdictChange,
    VerdictTransition,
)
from gpumon.model.instant import Instant

GONE_AFTER = 10 * MINUTE
"""Seconds for which a device must be missing from the inventory before its verdicts are cleared."""
NEED_NO_SAMPLES = frozenset({Clearance.RECOVERED, Clearance.GONE, Clearance.OFF})
"""Clearances of findings that do not depend on the samples of a window."""
SAME_EVENT_SECONDS = 1e-3
"""Maximum difference in seconds between two times of the same event, because each is computed from several clocks."""


def evaluate(health: Health, facts: Facts, checks: Iterable[Check] = CHECKS) -> Health:
    """Evaluate the enabled checks once and return the new health. `Health.due` has the transitions to store next."""
    checks = [check for check in checks if check.name not in facts.policy.disabled]
    passed = 0.0 if health.evaluated is None else facts.now.uptime - health.evaluated.uptime
    verdicts, pending, due = dict(health.open), dict[Key, Pending](), list[VerdictTransition]()
    unvisited, failing_checks = dict(health.pending), dict[Key, str]()
    for check in checks:
        in_grace = check.grace and facts.now.at < facts.policy.boot_grace
        for key, result in _findings(check, facts, failing_checks):
            finding = None if in_grace and not (result and result.ended) else result
            before, waited = verdicts.get(key), unvisited.pop(key, None)
            if before is None and waited is None and (finding is None or finding.level is OK):
                continue  # as nearly always
            run = _CheckRun(check, key[1], finding, before, waited, passed, facts)
            verdict, waiting, change = run.evaluate()
            if verdict is not None:
                verdicts[key] = verdict
            if waiting is not None:
                pending[key] = waiting
            if change is not None:
                due.append(change)
    names = {check.name for check in checks}
    due += _without_evaluation(verdicts, facts, names, health.pending, pending)
    for verdict in tuple(inhibition.ended_with_causes(due, verdicts)):
        due.append(transition(verdict, VerdictChange.CLEARED, facts, clearing.recovery_clearance(verdict, facts)))
    for key, waiting in unvisited.items():  # absent devices: after a start they may not have been read yet
        if key[0] in names and waiting.is_valid(facts.now.uptime):
            pending.setdefault(key, waiting)
    return replace(
        health,
        open=inhibition.with_causes(verdicts, facts),
        pending=pending,
        failing_checks=failing_checks,
        due=tuple(inhibition.transitions_with_causes(due, verdicts, facts)),
        score=node_score(health.history, verdicts, facts),
        evaluated=facts.now,
    )


def _findings(check: Check, facts: Facts, failing_checks: dict[Key, str]) -> Iterator[tuple[Key, Finding | None]]:
    """Yield (key, finding) for each device of the check. Texts of exceptions are put into `failing_checks`.

    Samples from before a recent clearance of a cause do not count.
    """
    later: dict[float, dict[str, Callable[[], Finding | None]]] = {}
    for device, evaluate_device in check.cases(facts):
        key, finding = (check.name, device), None
        begin = inhibition.counting_start(check, device, facts)
        if begin is not None and begin not in later:
            later[begin] = dict(check.cases(replace(facts, counted_from=begin)))
        try:
            finding = evaluate_device() if begin is None else later[begin][device]()
        except ThresholdOffError:
            finding = OFF
        except Exception as error:  # noqa: BLE001 - the other checks are evaluated all the same
            *_, last = traceback.extract_tb(error.__traceback__)
            failing_checks[key] = f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"
        yield key, finding


def restored_verdicts(verdicts: Iterable[Verdict], boot_id: str) -> Iterator[Verdict]:
    """Yield the stored verdicts for use in the boot `boot_id`.

    If a repair can clear a verdict, its healthy period (`ok_seconds`) starts again after a reboot.
    """
    for verdict in verdicts:
        check = BY_NAME.get(verdict.check)
        restart = check is not None and check.ends_by_repair and verdict.last_active.boot_id != boot_id
        yield verdict._replace(ok_seconds=0.0) if restart else verdict


def transition(
    verdict: Verdict, change: VerdictChange, facts: Facts, cleared_by: Clearance | None = None
) -> VerdictTransition:
    return VerdictTransition(
        verdict=verdict,
        change=change,
        time=facts.instant,
        cleared_by=cleared_by,
        muted=facts.maintenance is not None,
    )


@dataclass(frozen=True, slots=True)
class _CheckRun:
    """One evaluation of one check on one device: the new finding, and the state before it."""

    check: Check
    device: str
    finding: Finding | None
    verdict: Verdict | None
    pending: Pending | None
    passed: float
    """Seconds since the previous evaluation."""
    facts: Facts

    def evaluate(self) -> tuple[Verdict | None, Pending | None, VerdictTransition | None]:
        """Return the updated verdict if one is open, the pending findings of a level change, and the due transition."""
        finding, uptime = self.finding, self.facts.now.uptime
        if finding is None or self._lacks_evidence(finding):
            # The check cannot be evaluated. Pending time stays valid for a while: the condition may last unobserved.
            verdict = None if self.verdict is None else self.verdict._replace(active=False)
            waits = self.pending is not None and self.pending.is_valid(uptime)
            return verdict, self.pending if waits else None, None
        verdict = None if self.verdict is None else self._update(self.verdict, finding)
        current = OK if verdict is None else verdict.level
        latch = self.check.latch if finding.level <= current and finding.ended is None else None
        if verdict is not None and latch is not None and not verdict.active:
            cleared_by = clearing.latched_clearance(verdict, latch, self.facts)
            if cleared_by is not None:
                return verdict, None, transition(verdict, VerdictChange.CLEARED, self.facts, cleared_by)
        if verdict is not None and (latch is not None or finding.level == current):
            return verdict, None, self._action_change(verdict, finding)
        if finding.level == current:
            return verdict, None, None
        patience = self.check.after if finding.level > current else self.check.clear_after
        waiting = self._waiting_finding(current, finding.level, patience)
        if waiting.lasted[finding.level] < patience and finding.ended is not Clearance.GONE:
            return verdict, waiting, None
        return verdict, waiting, self._level_change(verdict, finding)

    def _lacks_evidence(self, finding: Finding) -> bool:
        """Return whether the finding would lower the verdict, but is UNKNOWN or without enough samples.

        A restart drops all samples. The agent must have run for the length of the check's longest window, at most an
        hour. If the fault was last active in this boot before the agent's start, the window must not reach back to that
        time.
        """
        if self.verdict is None or finding.level >= self.verdict.level or finding.ended in NEED_NO_SAMPLES:
            return False
        now, window = self.facts.now, max((window.seconds for window in self.check.windows), default=0.0)
        last = self.verdict.last_active
        before_start = last.boot_id == self.facts.boot_id and last.at <= now.at - now.uptime
        is_filled = now.uptime >= min(HOUR, window) and not (before_start and now.at - last.at < window)
        return finding.level is UNKNOWN or not is_filled

    def _waiting_finding(self, current: Level, target: Level, patience: float) -> Pending:
        uptime = self.facts.now.uptime
        lasted = (
            self.pending.lasting_seconds(uptime) if self.pending is not None and self.pending.level is current else {}
        )
        crossed = (level for level in Level if current < level <= target or target <= level < current)
        return Pending(current, {level: lasted.get(level, 0.0) for level in crossed}, uptime, patience)

    def _update(self, verdict: Verdict, finding: Finding) -> Verdict:
        """Return the verdict with the fields updated that change without a transition."""
        reset_at = clearing.last_reset_at(verdict, self.facts)
        if reset_at != verdict.reset_at:
            since_reset = reset_at is not None and self.check.ends_by_repair
            verdict = verdict._replace(reset_at=reset_at, ok_seconds=0.0 if since_reset else verdict.ok_seconds)
        ok_seconds = verdict.ok_seconds + (self.passed if clearing.is_observed(self.device, self.facts) else 0.0)
        if finding.level < verdict.level and (finding.level is OK or self.check.latch is not None):
            return verdict._replace(active=False, ok_seconds=ok_seconds)
        if finding.level == verdict.level:
            verdict = verdict._replace(reason=finding.reason, evidence=self._evidence(finding, verdict))
        last = verdict.last_active.on_clock(self.facts.instant)
        if finding.at is not None and finding.at <= SAME_EVENT_SECONDS + last:
            return verdict._replace(active=False, ok_seconds=ok_seconds)
        return _with_last_active(verdict, finding, self.facts)

    def _level_change(self, verdict: Verdict | None, finding: Finding) -> VerdictTransition:
        facts = self.facts
        if verdict is not None and finding.level is OK:
            ended = None if finding.ended is Clearance.RECOVERED else finding.ended
            cleared_by = ended or clearing.recovery_clearance(verdict, facts)
            return transition(verdict, VerdictChange.CLEARED, facts, cleared_by)
        action = remediation.escalated_action(finding.action, (self.check.name, self.device), facts)
        if verdict is None:
            change = VerdictChange.RAISED
            verdict = Verdict(
                check=self.check.name,
                device=self.device,
                level=finding.level,
                reason=finding.reason,
                action=action,
                evidence=self._evidence(finding),
                raised=facts.instant,
                last_active=facts.instant,
            )
        else:
            change = VerdictChange.CHANGED
            evidence = self._evidence(finding, verdict)
            verdict = verdict._replace(level=finding.level, reason=finding.reason, action=action, evidence=evidence)
        return transition(_with_last_active(verdict, finding, facts), change, facts)

    def _evidence(self, finding: Finding, verdict: Verdict | None = None) -> Evidence:
        """Return the evidence of the finding, and the owners of the GPU when the verdict was raised."""
        owners = self.facts.holders.get(self.device) if verdict is None else verdict.evidence.get(HELD_BY)
        return {**finding.evidence, HELD_BY: owners} if owners else finding.evidence

    def _action_change(self, verdict: Verdict, finding: Finding) -> VerdictTransition | None:
        action = remediation.escalated_action(finding.action, verdict.key, self.facts)
        if finding.level != verdict.level or action == verdict.action:
            return None
        return transition(verdict._replace(action=action), VerdictChange.CHANGED, self.facts)


def _with_last_active(verdict: Verdict, finding: Finding, facts: Facts) -> Verdict:
    """Return the verdict with the time at which the fault was last active: now, or that of the finding's event."""
    now = facts.now
    if finding.at is None:
        return verdict._replace(active=True, last_active=facts.instant, ok_seconds=0.0)
    at = now.at - max(0.0, now.wall - finding.at)
    boot_id = facts.boot_id if at >= 0 else ""  # the event was in an earlier boot
    return verdict._replace(active=False, last_active=Instant(boot_id, at, finding.at), ok_seconds=0.0)


def _without_evaluation(
    verdicts: Mapping[Key, Verdict],
    facts: Facts,
    checks: set[str],
    waiting: Mapping[Key, Pending],
    pending: dict[Key, Pending],
) -> Iterator[VerdictTransition]:
    """Yield the transitions of verdicts whose check is disabled or whose device is absent or renamed.

    The time for which a device is absent is counted in `pending`. `waiting`: that of the previous evaluation.
    """
    names = {state.pci_name: state.uuid for state in facts.gpus}
    present = {NODE, *(state.uuid for state in facts.gpus), *(case.device for case in facts.port_cases)}
    for key, verdict in verdicts.items():
        if verdict.check not in checks:
            yield transition(verdict, VerdictChange.CLEARED, facts, Clearance.OFF)
        elif verdict.device in present:
            continue
        elif verdict.device in facts.gone:
            yield transition(verdict, VerdictChange.CLEARED, facts, Clearance.GONE)
        elif verdict.device in names:
            yield from _move_to_uuid(verdict, names[verdict.device], verdicts, facts)
        elif _lists(verdict.device, facts):
            uptime = facts.now.uptime
            lasted = waiting[key].lasting_seconds(uptime).get(OK, 0.0) if key in waiting else 0.0
            pending[key] = Pending(verdict.level, {OK: lasted}, uptime, GONE_AFTER)
            if lasted >= GONE_AFTER:
                yield transition(verdict, VerdictChange.CLEARED, facts, Clearance.GONE)


def _lists(device: str, facts: Facts) -> bool:
    """Return whether the devices of this kind are listed now, so that one that is not among them is absent."""
    if device.startswith(JOB):  # one that has ended is in Facts.gone, one that shares a GPU is not evaluated
        return False
    return facts.ports_listed if "/" in device else bool(facts.node.nvml_up)


def _move_to_uuid(
    verdict: Verdict, uuid: str, verdicts: Mapping[Key, Verdict], facts: Facts
) -> Iterator[VerdictTransition]:
    """Yield the transitions that move a verdict from a GPU's provisional name to its uuid."""
    yield transition(verdict, VerdictChange.CLEARED, facts, Clearance.NAMED)
    other = verdicts.get((verdict.check, uuid))
    if other is None or other.level < verdict.level:
        change = VerdictChange.RAISED if other is None else VerdictChange.CHANGED
        yield transition(verdict._replace(device=uuid), change, facts)
