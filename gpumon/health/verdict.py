"""What is judged: the findings of checks, the verdicts that they become, and what became of those. Values only.

Named tuples: `gpumon check` reads verdicts, and dataclasses take longer to import than the answer may cost.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

from gpumon.health.terms import FAIL, OK, UNKNOWN, WARN, Action, Level, Way

NODE = ""
"""In place of a device: the node, or the agent."""

Key = tuple[str, str]
"""Check and device: of each pair there is at most one verdict."""
Evidence = Mapping[str, float | str]
"""Names of readings, with their unit in the suffix as in the tables, and their values."""
NO_EVIDENCE: Evidence = {}


class Finding(NamedTuple):
    """What a check says of one device."""

    level: Level
    reason: str = ""
    """One sentence for people, with the numbers that matter; names no process and no user."""
    action: Action = Action.NONE
    evidence: Evidence = NO_EVIDENCE
    at: float | None = None
    """When it happened last, in seconds since the epoch; None for what is so now."""
    ended: Way | None = None
    """Of OK: what is latched is over too, and how that is known."""


WELL = Finding(level=OK)


def over(way: Way = Way.WELL) -> Finding:
    """All is well, and what had happened is known to be over."""
    return Finding(level=OK, ended=way)


OFF = over(Way.OFF)
"""An operator has set the number that it is judged by to null: nothing is found, and what was found is over."""


def warn(reason: str, action: Action = Action.NONE, *, at: float | None = None, **evidence: float | str) -> Finding:
    """A finding that a person should look at in the daytime."""
    return Finding(level=WARN, reason=reason, action=action, evidence=evidence, at=at)


def fail(reason: str, action: Action, *, at: float | None = None, **evidence: float | str) -> Finding:
    """A finding that makes the device, or the node, unfit for work."""
    return Finding(level=FAIL, reason=reason, action=action, evidence=evidence, at=at)


def unknown(reason: str, action: Action = Action.NONE, **evidence: float | str) -> Finding:
    """Nobody can tell, and somebody should."""
    return Finding(level=UNKNOWN, reason=reason, action=action, evidence=evidence)


class Verdict(NamedTuple):
    """A finding that has lasted long enough, until it is cleared."""

    check: str
    device: str
    """uuid of a GPU, `device/port` of a port, or NODE."""
    level: Level
    reason: str
    action: Action
    """Raised above what the check asks for when this node's history says that that did not help."""
    since: float
    """When it was raised, in seconds since the epoch."""
    seen: float
    """When it was last so, in seconds since the epoch."""
    seen_at: float
    """The same on CLOCK_BOOTTIME."""
    boot_id: str
    """Of the boot in which it was last so."""
    evidence: Evidence = NO_EVIDENCE
    since_at: float = 0.0
    """When it was raised, on CLOCK_BOOTTIME of the boot in which that was."""
    since_boot: str = ""
    well: float = 0.0
    """Seconds for which somebody has looked since it was last so, and it was not: a pause of the agent is none."""
    reset_at: float | None = None
    """When its GPU's counters were last seen to begin anew in this boot, on CLOCK_BOOTTIME: a reset."""
    active: bool = True
    """It is so now. False: it was, and stays until something clears it. Not stored."""
    under: Key | None = None
    """The verdict that this one follows from."""

    @property
    def key(self) -> Key:
        return self.check, self.device

    @property
    def episode(self) -> tuple[Key, float]:
        """The same from when it is raised until it is cleared."""
        return self.key, self.since


class VerdictChange(enum.StrEnum):
    """What becomes of a verdict."""

    RAISED = "raised"
    CHANGED = "changed"
    """Another level or action."""
    CLEARED = "cleared"


class VerdictTransition(NamedTuple):
    """One change of one verdict: what is stored, and what history is made of."""

    verdict: Verdict
    """As it is after the change, or was before it was cleared."""
    change: VerdictChange
    wall: float
    """Seconds since the epoch."""
    at: float = 0.0
    """The same on CLOCK_BOOTTIME."""
    boot_id: str = ""
    """Of the boot in which it was."""
    way: Way | None = None
    """Of what was cleared."""
    note: str = ""
    """Words of the person who acknowledged it."""
    muted: bool = False
    """The node was in maintenance."""


REPAIRS = frozenset({Way.RESET, Way.REBOOT, Way.ACKNOWLEDGED})
"""Ways behind which there is a person's work."""
