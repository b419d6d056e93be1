"""Runs of the agent: evidence of unexpected reboots and of an agent that keeps restarting. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRun:
    """The time from one start of the agent to its end."""

    boot_id: str
    version: str
    began: float
    """Seconds since the epoch."""
    began_at: float
    """Boot clock of the same."""
    last: float
    """Seconds since the epoch of the last heartbeat."""
    stopped: float | None = None
    """Seconds since the epoch of a regular stop; None if it runs, was killed, or ended with the host."""
    planned: bool = False
    """Whether the node was in maintenance at the last heartbeat."""


def last_before_boot(agent_runs: Iterable[AgentRun], boot_id: str) -> AgentRun | None:
    """Return the run in which the host went down before this boot; None if there is none."""
    runs = tuple(agent_runs)
    first = next((place for place, run in enumerate(runs) if run.boot_id == boot_id), len(runs))
    return runs[first - 1] if first else None


def restarts(agent_runs: Iterable[AgentRun], boot_id: str) -> Iterator[float]:
    """Yield the boot clock of each start in this boot after a run of the same version that was not stopped."""
    for before, after in pairwise(run for run in agent_runs if run.boot_id == boot_id):
        if before.stopped is None and not before.planned and before.version == after.version:
            yield after.began_at
