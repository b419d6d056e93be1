"""The lives of the agent, and what they tell: reboots that nobody asked for, an agent that does not stay up. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRun:
    """From one start of the agent to its end."""

    boot_id: str
    version: str
    began: float
    """Seconds since the epoch."""
    began_at: float
    """The same on CLOCK_BOOTTIME."""
    last: float
    """When it was last known to run, in seconds since the epoch."""
    stopped: float | None = None
    """When it ended in order, in seconds since the epoch; None: it runs, was killed, or went down with the host."""
    planned: bool = False
    """The node was in maintenance when it was last known to run."""


def last_before_boot(agent_runs: Iterable[AgentRun], boot_id: str) -> AgentRun | None:
    """The life in which the host went down before this boot; None where nobody knows of one."""
    known = tuple(agent_runs)
    first = next((place for place, one in enumerate(known) if one.boot_id == boot_id), len(known))
    return known[first - 1] if first else None


def restarts(agent_runs: Iterable[AgentRun], boot_id: str) -> Iterator[float]:
    """Boot clock of each start in this boot after a life of the same version that did not end in order."""
    for before, after in pairwise(one for one in agent_runs if one.boot_id == boot_id):
        if before.stopped is None and not before.planned and before.version == after.version:
            yield after.began_at
