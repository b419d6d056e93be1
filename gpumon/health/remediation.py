"""Remediation: the repairs that were performed for a verdict, those that did not help, and the next action. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpumon.health import clearing
from gpumon.health.check_row import DAY, Check
from gpumon.health.facts import Facts
from gpumon.health.node_health import Health
from gpumon.health.table import BY_NAME, SUBJECT_OF
from gpumon.health.verdict import OWN_ACTION, Action, Clearance, Key, Verdict

REMEMBERED = 7 * DAY
"""Seconds after a repair in which the same fault, if it returns, requires a stronger action."""
ESCALATION = (Action.RESET, Action.REBOOT, Action.INSPECT)
_ACTION_OF = {Clearance.RESET: Action.RESET, Clearance.REBOOT: Action.REBOOT}
COVERED = {
    Clearance.REBOOT: frozenset({Action.RESTART, Action.RESET, Action.REBOOT}),
    Clearance.RESET: frozenset({Action.RESTART, Action.RESET}),
}
"""Verdict actions that each repair includes. No repair includes an inspection or a replacement."""


def escalated_action(action: Action, key: Key, facts: Facts) -> Action:
    """Return the next action for verdict `key`: `action`, or a stronger one, up to INSPECT, if repairs did not help.

    It is stronger than each repair that was tried, and not weaker than the action that the open verdict has.
    """
    if action not in ESCALATION:
        return action
    tried = (ESCALATION.index(_ACTION_OF[repair]) + 1 for repair in _tried_repairs(key, facts))
    step = max([ESCALATION.index(action), *tried])
    verdict = facts.open.get(key)
    if verdict is not None and verdict.action in ESCALATION:  # an action that was published is not withdrawn
        step = max(step, ESCALATION.index(verdict.action))
    return ESCALATION[min(step, len(ESCALATION) - 1)]


def _tried_repairs(key: Key, facts: Facts) -> Iterator[Clearance]:
    """Yield the repairs of this device that did not end the fault, or not for long one of its subject."""
    verdict = facts.open.get(key)
    if verdict is not None and verdict.active and (repair := clearing.ineffective_repair(verdict, facts)) is not None:
        yield repair
    check, device = key
    row, boot_id = BY_NAME.get(check), facts.boot_id
    recurred = verdict is not None and verdict.raised.boot_id != boot_id == verdict.last_active.boot_id
    if verdict is not None and recurred and not verdict.active and row is not None and row.ends_by_repair:
        yield Clearance.REBOOT
    new = verdict is None or verdict.raised.boot_id == boot_id
    if new and row is not None and any(rebooted_causes(facts.open.values(), row, device, boot_id)):
        yield Clearance.REBOOT
    subject = SUBJECT_OF.get(check)
    for transition in facts.repairs_by_device.get(device, ()):
        cleared = transition.verdict
        same = cleared.check == check or SUBJECT_OF.get(cleared.check) == subject
        recent = facts.age(transition) <= REMEMBERED
        if same and recent and cleared.action in ESCALATION and transition.cleared_by is not None:
            yield transition.cleared_by


def performed_repair(verdict: Verdict, boot_id: str) -> Clearance | None:
    """Return the repair made since the fault was last active, if it includes the verdict's action (COVERED)."""
    last, reset_at = verdict.last_active, verdict.reset_at
    if last.boot_id != boot_id:
        repair = Clearance.REBOOT
    elif verdict.active or reset_at is None or reset_at <= max(last.at, verdict.raised.at_or_boot(boot_id)):
        return None
    else:
        repair = Clearance.RESET
    return repair if verdict.action in COVERED[repair] else None


def action_text(verdict: Verdict, health: Health, boot_id: str) -> str:
    """Return the text of the verdict's action and of operator's own actions (xids.file) for Xids that it inhibits."""
    inhibited = (each.evidence for each in health.consequences(verdict) if each.device == verdict.device)
    own = (str(evidence[OWN_ACTION]) for evidence in inhibited if OWN_ACTION in evidence)
    text = "; ".join(dict.fromkeys((verdict.action_text, *own)))
    return f"if it recurs, {text}" if performed_repair(verdict, boot_id) else text


def action_sentence(verdict: Verdict, health: Health, boot_id: str) -> str:
    """Return `action_text` as a sentence; an empty string if the action is none."""
    text = action_text(verdict, health, boot_id)
    return "" if verdict.action is Action.NONE else f"{text[0].upper()}{text[1:]}."


def rebooted_causes(verdicts: Iterable[Verdict], check: Check, device: str, boot_id: str) -> Iterator[Verdict]:
    """Yield those `verdicts` on the device that can inhibit the check's verdict, and for which the node was rebooted.

    If the check still finds a fault, that reboot did not help. A check with `inhibited_if` yields none.
    """
    for verdict in verdicts:
        applies = verdict.device == device and check.inhibited_where(verdict.check, verdict.evidence) == "same"
        if applies and check.inhibited_if is None and performed_repair(verdict, boot_id) is Clearance.REBOOT:
            yield verdict
