"""The section `probe`: runs of probes, their results and their schedule. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpumon.model.reading import Labels, Table
from gpumon.probe.core import state as probe_state
from gpumon.probe.core.frames import Progress
from gpumon.probe.core.probe_metrics import with_counters
from gpumon.probe.core.result import ProbeResult
from gpumon.probe.core.state import ProbeState
from gpumon.state.messages import AgentStatus, ProbeStarted, StoredState
from gpumon.state.report import Report
from gpumon.state.section import Step


def apply(probe: ProbeState, step: Step) -> ProbeState:
    """Return the state of the probes after a message."""
    match step.message:
        case ProbeStarted(id=id, probe=name, gpus=gpus):
            return probe_state.begin_run(probe, id, name, gpus)
        case Progress():
            return replace(probe, progress=step.message)
        case ProbeResult():
            return probe_state.end_run(probe, step.message, at=step.now.at, uptime=step.now.uptime)
        case StoredState(probe_results=results, probe_counters=counters):
            return probe_state.restore(probe, results, counters)
        case AgentStatus(next_probes=next_runs, probe_unkillable=unkillable):
            metrics = with_counters(probe.metrics, step.settings.probe_intervals)  # a reload may have added a schedule
            return replace(probe, metrics=metrics, next_runs=next_runs, unkillable=unkillable)
    return probe


def tables(report: Report) -> Iterator[tuple[Table, Labels]]:
    """Yield the metrics of each probe; without the counters that the store may hold, until it was read or failed."""
    counted = report.agent.restored or report.node.store_up == 0
    for metrics in report.probe.metrics.values():
        yield metrics if counted else replace(metrics, runs_total=None, skips_total=None), ()
