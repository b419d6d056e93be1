"""The section `probe`: runs of probes, their results and their schedule. Pure."""

from __future__ import annotations

from dataclasses import replace

from gpumon.probe.core import state as probe_state
from gpumon.probe.core.state import ProbeState
from gpumon.state.messages import AgentStatus, ProbeEnded, ProbeProgressed, ProbeStarted, StoredState
from gpumon.state.section import Step


def apply(probe: ProbeState, step: Step) -> ProbeState:
    """Return the state of the probes after a message."""
    match step.message:
        case ProbeStarted(id=id, probe=name, gpus=gpus):
            return probe_state.begin_run(probe, id, name, gpus)
        case ProbeProgressed(progress=progress):
            return replace(probe, progress=progress)
        case ProbeEnded(result=result):
            return probe_state.end_run(probe, result, at=step.now.at, uptime=step.now.uptime)
        case StoredState(probe_results=results, probe_counters=counters):
            return probe_state.restore(probe, results, counters)
        case AgentStatus(next_probes=next_runs, probe_unkillable=unkillable):
            return replace(probe, next_runs=next_runs, unkillable=unkillable)
    return probe
