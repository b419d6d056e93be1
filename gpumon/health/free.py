"""Whether the node is free for a run of the probe, as far as is known. Pure."""

from __future__ import annotations

from gpumon.health.facts import Facts
from gpumon.model.gpu_state import GpuState


def free_since(facts: Facts) -> float | None:
    """As Now.uptime; None: it is not."""
    if not is_free(facts):
        return None
    before = facts.probe.free_since
    return facts.now.uptime if before is None else before


def is_free(facts: Facts) -> bool:
    """Nobody uses a GPU, works on the node, or keeps it for a job; what cannot be seen has a verdict of its own."""
    kept = facts.maintenance is not None or facts.held
    own = facts.probe.own_load(facts.now.at)
    return not kept and all(_is_free(state, facts, own=state.uuid in own) for state in facts.gpus)


def _is_free(state: GpuState, facts: Facts, *, own: bool) -> bool:
    """Where NVML may not name the processes of others, their work tells of them. `own`: a run of ours is there."""
    used = bool(state.gpu.processes) or (facts.contained is not False and state.idle_since is None)
    return state.fault is None and not state.released and (own or not used)
