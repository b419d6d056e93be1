"""Repairs by operators, derived from transitions. If one repair cleared several verdicts, it counts once. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gpumon.health.check_row import MINUTE
from gpumon.health.facts import Facts
from gpumon.health.verdict import FAIL, Clearance

TOGETHER = 15 * MINUTE
"""Maximum seconds between the times at which one repair cleared several verdicts of a device."""


class Repair(NamedTuple):
    """One repair by an operator: a GPU reset, a reboot, or a verdict that was cleared on request."""

    cleared_by: Clearance
    devices: frozenset[str]
    """All devices whose verdicts a reboot cleared; one device for other repairs."""
    age: float
    """Seconds since the repair."""


def repairs(facts: Facts, *, within: float, after: float = 0.0) -> Iterator[Repair]:
    """Yield the repairs in the last `within` seconds that cleared primary failures, in no particular order.

    Failures that were raised in maintenance, and last active or cleared in it, do not count. Nor do repairs up to the
    time `after`, in seconds since the epoch.
    """
    last: dict[tuple[Clearance, str], Repair] = {}
    for transition in facts.transitions:
        age = facts.age(transition)
        verdict = transition.verdict
        counts = transition.is_repair and verdict.level is FAIL and verdict.inhibited_by is None
        recent = age <= within and facts.now.wall - age > after
        if not counts or not recent or facts.planned_work.was_in_maintenance(transition):
            continue
        cleared_by, device = transition.cleared_by or Clearance.RECOVERED, verdict.device
        key = (cleared_by, transition.boot_id if cleared_by is Clearance.REBOOT else device)
        repair = last.get(key)
        if repair is not None and (cleared_by is Clearance.REBOOT or repair.age - age <= TOGETHER):
            last[key] = repair._replace(devices=repair.devices | {device})
            continue
        if repair is not None:
            yield repair
        last[key] = Repair(cleared_by, frozenset({device}), age)
    yield from last.values()
