"""Runs of the agent process, from which checks detect unexpected reboots and repeated crashes of the agent. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from gpumon.model.instant import Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRun:
    """One run of the agent process, from its start to its end."""

    version: str
    began: Instant
    last: float
    """Time of the last heartbeat, in seconds since the epoch."""
    stopped: float | None = None
    """Time of a regular stop (seconds since the epoch); None if it runs, crashed, was killed or ended with the host."""
    planned: bool = False
    """Whether the node was in maintenance at the last heartbeat."""


def last_before_boot(agent_runs: Iterable[AgentRun], boot_id: str) -> AgentRun | None:
    """Return the last agent run before the boot `boot_id`; None if there is none. `agent_runs`: newest last."""
    runs = tuple(agent_runs)
    first = next((place for place, run in enumerate(runs) if run.began.boot_id == boot_id), len(runs))
    return runs[first - 1] if first else None


def restarts(agent_runs: Iterable[AgentRun], boot_id: str) -> Iterator[float]:
    """Yield the boot clock time of each start in the boot `boot_id` that followed a crash or kill of the agent.

    A run ended in a crash or kill if it was not stopped regularly. It does not count if the node was in maintenance at
    its last heartbeat, or if the next run has another version.
    """
    for before, after in pairwise(run for run in agent_runs if run.began.boot_id == boot_id):
        if before.stopped is None and not before.planned and before.version == after.version:
            yield after.began.at
