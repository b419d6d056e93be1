"""What people had to do: rulings that stand for one repair are told as one. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gpumon.health.check import MINUTE
from gpumon.health.facts import Facts
from gpumon.health.terms import FAIL, Way
from gpumon.health.verdict import REPAIRS, VerdictChange, VerdictTransition

TOGETHER = 15 * MINUTE
"""Seconds within which verdicts of one device end by one repair."""


class Repair(NamedTuple):
    """One of them."""

    way: Way
    devices: frozenset[str]
    """A reboot is one repair of all that it cleared."""
    age: float
    """Seconds since."""


def repairs(facts: Facts, *, within: float, after: float = 0.0) -> Iterator[Repair]:
    """Of what was unfit for work, the oldest first. `after`: seconds since the epoch before which nothing counts."""
    last: dict[tuple[Way, str], Repair] = {}
    for transition in facts.transitions:
        age = facts.age(transition)
        if (
            not _is_repair(transition)
            or facts.of_maintenance(transition)
            or age > within
            or facts.now.wall - age <= after
        ):
            continue
        way, device = transition.way or Way.WELL, transition.verdict.device
        key = (way, transition.boot_id if way is Way.REBOOT else device)
        known = last.get(key)
        if known is not None and (way is Way.REBOOT or known.age - age <= TOGETHER):
            last[key] = known._replace(devices=known.devices | {device})
            continue
        if known is not None:
            yield known
        last[key] = Repair(way, frozenset({device}), age)
    yield from last.values()


def _is_repair(transition: VerdictTransition) -> bool:
    verdict = transition.verdict
    return (
        transition.change is VerdictChange.CLEARED
        and transition.way in REPAIRS
        and verdict.level is FAIL
        and verdict.under is None
    )
