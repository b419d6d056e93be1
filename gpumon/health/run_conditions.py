"""What decides on probe runs: whether the node is free, and the repairs since the last run. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from gpumon.health.facts import Facts
from gpumon.health.verdict import FAIL, VerdictTransition
from gpumon.model.gpu_state import GpuState
from gpumon.model.instant import Instant
from gpumon.probe.core.result import ProbeResult


def free_since(facts: Facts) -> float | None:
    """Return the time since which the node has been free, on the clock of Now.uptime; None if the node is not free."""
    if not is_free(facts):
        return None
    before = facts.probe.free_since
    return facts.now.uptime if before is None else before


def is_free(facts: Facts) -> bool:
    """Return whether no GPU has a fault, is released or in use, and no hold or maintenance is in force.

    A run of the probe does not count as use, nor does a process list that cannot be read (see `allreduce_stale`).
    """
    reserved = facts.maintenance is not None or facts.held
    own = facts.probe.own_load(facts.now.at)
    return not reserved and all(_is_free(state, facts, own=state.uuid in own) for state in facts.gpus)


def _is_free(state: GpuState, facts: Facts, *, own: bool) -> bool:
    """Return whether a GPU is free. In a container, where NVML may hide processes, it must also be idle."""
    used = bool(state.gpu.processes) or (facts.contained is not False and state.idle_since is None)
    return state.fault is None and not state.released and (own or not used)


class RepairSinceRun(NamedTuple):
    """One repair of a GPU since its last run of a probe."""

    uuid: str
    """uuid of the repaired GPU."""
    words: str
    """Completes "No all-reduce has run since ..."."""


def repairs_since_run(
    runs: Sequence[ProbeResult],
    gpus: Iterable[GpuState],
    transitions: Iterable[VerdictTransition],
    now: Instant,
) -> Iterator[RepairSinceRun]:
    """Yield the repairs of each GPU since the last run that used it: replacement, reset, or the clearing of a failure.

    `runs`: complete runs, newest last; if the last one used no GPU, yield nothing.
    """
    if not runs or not runs[-1].conditions.gpus:
        return
    uuids = set()
    for state in gpus:
        uuids.add(state.uuid)
        end = _last_run_end(runs, state.uuid)
        if end is None:
            if any(run.is_whole for run in runs):
                yield RepairSinceRun(state.uuid, f"GPU {state.index} was replaced")
        elif state.reset_at is not None and now.wall - (now.at - state.reset_at) > end:
            yield RepairSinceRun(state.uuid, f"GPU {state.index} was reset, or the driver loaded again")
    for transition in transitions:
        verdict = transition.verdict
        repaired = transition.is_repair and verdict.level is FAIL and verdict.device in uuids
        if repaired and transition.time.on_clock(now) > (_last_run_end(runs, verdict.device) or runs[-1].ended):
            yield RepairSinceRun(verdict.device, "a GPU was repaired")


def _last_run_end(runs: Sequence[ProbeResult], uuid: str) -> float | None:
    return next((run.ended for run in reversed(runs) if uuid in run.conditions.gpus), None)
