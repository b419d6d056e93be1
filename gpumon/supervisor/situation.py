"""From the Report to what the guards of a probe look at. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from gpumon.probe.guard import GpuUse, Situation
from gpumon.report import Report
from gpumon.state import GpuState


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """What is ours on the GPUs: no stranger."""

    pids: Collection[int] = ()
    """Of ranks, in the namespace of the agent."""
    gpus: Collection[str] = ()
    """UUIDs of the GPUs on which each has one rank that may have come there by now."""


def situation(report: Report, own: Own | None = None) -> Situation:
    """As far as it can be seen; what the configuration and the run's own kind add is for the caller."""
    return Situation(
        gpus=tuple(_use(state, own or Own()) for state in report.gpus),
        expected=max(0, int(report.node.gpus_expected or 0) - len(report.excluded)),
        simulated=report.simulated is not None,
        released=report.release.end is not None,
        maintained=report.maintenance is not None,
    )


def _use(state: GpuState, own: Own) -> GpuUse:
    gpu = state.gpu
    return GpuUse(
        index=state.index,
        uuid=state.uuid,
        processes=gpu.processes,
        strangers=strangers(gpu.processes, ours=int(state.uuid in own.gpus)),
        utilization=gpu.utilization_ratio,
        memory_used=gpu.memory_used_bytes,
        memory_free=gpu.memory_free_bytes,
        memory_exact=gpu.memory_reserved_bytes is not None,
        mig=bool(gpu.mig_mode),
        compute_mode=None if gpu.compute_mode is None else int(gpu.compute_mode),
        fault=state.fault,
    )


def strangers(processes: float | None, *, ours: int) -> float | None:
    """How many processes of a GPU are not ours, by their number."""
    return None if processes is None else max(0.0, processes - ours)
