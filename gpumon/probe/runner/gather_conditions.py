"""From the Report to what the guards of a probe look at."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gpumon.model import hold
from gpumon.model.gpu_state import GpuState
from gpumon.probe.core.conditions import GpuUse, Situation
from gpumon.probe.runner import host_memory
from gpumon.state.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """What is ours on the GPUs: no stranger."""

    pids: frozenset[int] = frozenset()
    """Of ranks, in the namespace of the agent."""
    gpus: Collection[str] = ()
    """UUIDs of the GPUs on which there may be one rank each by now."""


def situation(report: Report, at: float, own: Own | None = None) -> Situation:
    """As far as it can be seen; what the configuration adds is for the caller. `at`: now, on the boot clock."""
    links, loaded = report.internal.links.seen, report.probe.own_load(at)
    unknown = strangers_of(report.gpus, own or Own(), contained=None if links is None else links.contained)
    return Situation(
        gpus=tuple(_use(state, unknown[state.uuid], at, own=state.uuid in loaded) for state in report.gpus),
        expected=expected_gpus(report),
        simulated=report.simulated is not None,
        released=report.release.end is not None,
        maintained=report.maintenance is not None,
        held=hold.hint(hold.in_force(report.holds)),
        recalled=report.internal.recalled,
        store=report.notices.get("store", ""),
        clique=any(state.fabric is not None and state.fabric.cluster_uuid for state in report.gpus),
        schedulers=None if links is None else links.schedulers,
        poll_seconds=sum((report.node.poll_duration_seconds or {}).get(tier, 0.0) for tier in ("fast", "slow")),
    )


def expected_gpus(report: Report) -> int:
    """GPUs that should be here, less those that nobody looks at."""
    return max(0, int(report.node.gpus_expected or 0) - len(report.excluded))


def free_memory(report: Report, used: Collection[str]) -> float | None:
    """Bytes that ranks may count on: on the GPU that has least left, on the CPU in all; None: not known."""
    if not report.gpus or report.simulated is not None:
        return host_memory.available()
    free = [state.gpu.memory_free_bytes for state in report.gpus if state.uuid in used]
    return min((one for one in free if one is not None), default=None) if None not in free else None


def _use(state: GpuState, strangers: float | None, at: float, *, own: bool) -> GpuUse:
    """`own`: what moves there now, or did a moment ago, is the probe's."""
    gpu = state.gpu
    return GpuUse(
        index=state.index,
        uuid=state.uuid,
        processes=gpu.processes,
        strangers=strangers,
        utilization=None if own else gpu.utilization_ratio,
        memory_used=gpu.memory_used_bytes,
        memory_free=gpu.memory_free_bytes,
        memory_exact=gpu.memory_reserved_bytes is not None,
        traffic=None if own else state.traffic,
        idle_seconds=None if state.idle_since is None else at - state.idle_since,
        mig=bool(gpu.mig_mode),
        compute_mode=None if gpu.compute_mode is None else int(gpu.compute_mode),
        fault=state.fault,
    )


def strangers_of(gpus: Sequence[GpuState], own: Own, *, contained: bool | None) -> Mapping[str, float | None]:
    """By UUID, how many processes are not ours; None: not known.

    In a container NVML may give the host's pids, by which nobody knows his own: then they are told by their number.
    """
    seen = {pid for state in gpus for pid in state.pids or ()}
    by_pid = contained is False or bool(seen & own.pids)
    return {
        state.uuid: float(len(set(state.pids) - own.pids))
        if by_pid and state.pids is not None
        else _by_number(state.gpu.processes, ours=state.uuid in own.gpus)
        for state in gpus
    }


def _by_number(processes: float | None, *, ours: bool) -> float | None:
    return None if processes is None else max(0.0, processes - ours)
