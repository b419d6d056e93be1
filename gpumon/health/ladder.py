"""What to do next, by what has been tried: a reset that did not help is followed by a reboot, and by a person. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from gpumon.health import clearing, tried
from gpumon.health.check import DAY
from gpumon.health.facts import Facts
from gpumon.health.table import BY_NAME, SUBJECT_OF
from gpumon.health.terms import Action, Way
from gpumon.health.verdict import Key

REMEMBERED = 7 * DAY
"""Seconds for which a repair that did not last counts."""
RUNGS = (Action.RESET, Action.REBOOT, Action.INSPECT)
_TRIED = {Way.RESET: Action.RESET, Way.REBOOT: Action.REBOOT}


def escalated(action: Action, key: Key, facts: Facts) -> Action:
    """The action for this verdict: above what was tried, of the same device, for what has the same subject."""
    if action not in RUNGS:
        return action
    rung = max([RUNGS.index(action), *(RUNGS.index(_TRIED[way]) + 1 for way in _tried(key, facts))])
    known = facts.open.get(key)
    if known is not None and known.action in RUNGS:  # nobody takes back what a person is at already
        rung = max(rung, RUNGS.index(known.action))
    return RUNGS[min(rung, len(RUNGS) - 1)]


def _tried(key: Key, facts: Facts) -> Iterator[Way]:
    """What did not help, or not for long."""
    known = facts.open.get(key)
    if known is not None and known.active and (way := clearing.in_vain(known, facts)) is not None:
        yield way
    check, device = key
    new = check in BY_NAME and (known is None or known.since_boot == facts.boot_id)
    if new and any(tried.rebooted(facts.open.values(), BY_NAME[check], device, facts.boot_id)):
        yield Way.REBOOT
    subject = SUBJECT_OF.get(check)
    for one in facts.cures.get(device, ()):
        same = one.verdict.check == check or SUBJECT_OF.get(one.verdict.check) == subject
        if same and one.way is not None and one.verdict.action in RUNGS and facts.age(one) <= REMEMBERED:
            yield one.way
