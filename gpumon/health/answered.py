"""What a verdict asked for was done: until it is proved to have helped, nobody should do it again. Pure.

`gpumon check` reads it: it imports nothing of the checks.
"""

from __future__ import annotations

from gpumon.health.terms import Action, Way
from gpumon.health.verdict import Verdict

ANSWERED = {
    Way.REBOOT: frozenset({Action.RESTART, Action.RESET, Action.REBOOT}),
    Way.RESET: frozenset({Action.RESTART, Action.RESET}),
}
"""What each repair does, or more than that; what asks for a person, or for another part, neither does."""


def repaired(one: Verdict, boot_id: str) -> Way | None:
    """What was done since it was last so, where that is what it asked for, or more. `boot_id`: of this boot."""
    way = Way.REBOOT if one.boot_id != boot_id else Way.RESET if _was_reset(one) else None
    return way if way is not None and one.action in ANSWERED[way] else None


def _was_reset(one: Verdict) -> bool:
    """In the boot in which it was last so. A reset before it was raised, or that did not help, was none for it."""
    raised_at = one.since_at if one.since_boot == one.boot_id else 0.0
    return not one.active and one.reset_at is not None and one.reset_at > max(one.seen_at, raised_at)
