"""Decides whether the node is free for a run of the probe. Pure."""

from __future__ import annotations

from gpumon.health.facts import Facts
from gpumon.model.gpu_state import GpuState


def free_since(facts: Facts) -> float | None:
    """Return the time since which the node has been free, on the clock of Now.uptime; None if the node is not free."""
    if not is_free(facts):
        return None
    before = facts.probe.free_since
    return facts.now.uptime if before is None else before


def is_free(facts: Facts) -> bool:
    """Return whether no GPU has a fault, is released or in use, and no hold or maintenance is in force.

    A run of the probe does not count as use. Nor does a process list that cannot be read: then the check
    `allreduce_stale` reports that runs are skipped.
    """
    reserved = facts.maintenance is not None or facts.held
    own = facts.probe.own_load(facts.now.at)
    return not reserved and all(_is_free(state, facts, own=state.uuid in own) for state in facts.gpus)


def _is_free(state: GpuState, facts: Facts, *, own: bool) -> bool:
    """Return whether a GPU is read without a fault, is not released, and is not in use.

    If NVML may list only the processes of the agent's container, the GPU must also be idle. `own`: whether the
    load on the GPU is the agent's probe, which does not count as use.
    """
    used = bool(state.gpu.processes) or (facts.contained is not False and state.idle_since is None)
    return state.fault is None and not state.released and (own or not used)
