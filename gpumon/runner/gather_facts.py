"""Collects from the Report the facts that preflight checks before and during a run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpumon.health.products import is_coherent, is_utilization_latched, memory_in_use
from gpumon.model.gpu_state import GpuState
from gpumon.model.snapshot import ProcessReadings, SchedulerReadings
from gpumon.model.time_window import WindowKind, hold_hint, in_force
from gpumon.probe.core.preflight import GpuUse, PreflightFacts
from gpumon.runner.containment import process_names, read_text
from gpumon.state.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnProcesses:
    """The probe's own processes, which do not count as use of the GPUs."""

    pids: frozenset[int] = frozenset()
    """Pids of ranks in the agent's pid namespace."""
    gpus: Collection[str] = ()
    """UUIDs of the GPUs on each of which one rank may be running."""


def gather_facts(report: Report, at: float, own: OwnProcesses | None = None) -> PreflightFacts:
    """Return the facts for preflight that the Report contains. `own`: processes that do not count. `at`: boot clock."""
    host, loaded = report.host, report.probe.own_load(at)
    foreign = foreign_processes(report.gpus, own or OwnProcesses(), contained=host.value(ProcessReadings).contained)
    return PreflightFacts(
        gpus=tuple(
            _use(state, foreign[state.uuid], at, own=state.uuid in loaded, simulated=report.simulated is not None)
            for state in report.gpus
        ),
        expected=expected_gpus(report),
        simulated=report.simulated is not None,
        released=bool(in_force(report.windows, WindowKind.RELEASE)),
        maintained=report.maintenance is not None,
        held=hold_hint(in_force(report.windows, WindowKind.HOLD)),
        store_read=report.agent.restored,
        store_error=report.notices.get("store", ""),
        clique=any(state.fabric is not None and state.fabric.cluster_uuid for state in report.gpus),
        schedulers=host.value(SchedulerReadings).names,
        poll_seconds=sum((report.node.poll_duration_seconds or {}).get(tier, 0.0) for tier in ("fast", "slow")),
    )


def expected_gpus(report: Report) -> int:
    """Return the number of GPUs that the host should have, without those that the configuration excludes."""
    return max(0, int(report.node.gpus_expected or 0) - len(report.excluded))


def free_memory(report: Report, used: Collection[str]) -> float | None:
    """Return the bytes of memory that are free for ranks, on the host or on each GPU in `used`; None if unknown."""
    if not report.gpus or report.simulated is not None:
        return available_bytes()
    free = [state.gpu.memory_free_bytes for state in report.gpus if state.uuid in used]
    return min((size for size in free if size is not None), default=None) if None not in free else None


def available_bytes(root: Path = Path("/")) -> float | None:
    """Return the available bytes of memory: the minimum over the host and the agent's cgroups; None if unknown."""
    lines = read_text(root / "proc/meminfo").splitlines()
    free = [float(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return min((*free, *_free_in_cgroups(root)), default=None)


def _free_in_cgroups(root: Path) -> Iterator[float]:
    """Yield the free bytes of each cgroup (v2) with a memory limit: the agent's own cgroup and those above it."""
    folders = root / "sys/fs/cgroup"
    lines = read_text(root / "proc/self/cgroup").splitlines()
    place = next((line.removeprefix("0::").lstrip("/") for line in lines if line.startswith("0::")), None)
    own = None if place is None else folders / place
    for folder in () if own is None else (own, *own.parents):
        limit, used = read_text(folder / "memory.max").strip(), read_text(folder / "memory.current").strip()
        values = dict(line.split(" ", 1) for line in read_text(folder / "memory.stat").splitlines() if " " in line)
        cached = values.get("inactive_file", "").strip()  # counted as used, but reclaimed first
        if limit.isdigit() and used.isdigit():
            reclaimable = float(cached) if cached.isdigit() else 0.0
            yield max(0.0, float(limit) - max(0.0, float(used) - reclaimable))
        if folder == folders:
            return


def _use(state: GpuState, foreign: float | None, at: float, *, own: bool, simulated: bool) -> GpuUse:
    """Return the use of one GPU. `foreign`: number of processes on the GPU that are not the agent's.

    `own`: whether the probe may cause the GPU's current load; utilization and traffic are then None.
    """
    gpu = state.gpu
    return GpuUse(
        index=state.index,
        uuid=state.uuid,
        processes=gpu.processes,
        holders=() if simulated else process_names(state.pids or ()),
        foreign=foreign,
        utilization=None if own or is_utilization_latched(gpu) else gpu.utilization_ratio,
        memory_used=memory_in_use(gpu),
        memory_free=None if is_coherent(gpu.name or "") else gpu.memory_free_bytes,  # page cache there is reclaimed
        memory_exact=gpu.memory_reserved_bytes is not None,
        traffic=None if own or not state.link_rates else sum(state.link_rates.values()),
        idle_seconds=None if state.idle_since is None else at - state.idle_since,
        mig=bool(gpu.mig_mode),
        compute_mode=None if gpu.compute_mode is None else int(gpu.compute_mode),
        fault=state.fault,
    )


def foreign_processes(
    gpus: Sequence[GpuState], own: OwnProcesses, *, contained: bool | None
) -> Mapping[str, float | None]:
    """Return the number of foreign processes (not the agent's) on each GPU, by UUID; None if unknown.

    `contained`: whether the agent runs in a PID namespace of its own; None if unknown. Unless it is False, NVML may
    report the host's pids. If NVML then lists no pid of `own`, one process is subtracted on each GPU of `own` instead.
    """
    listed = {pid for state in gpus for pid in state.pids or ()}
    by_pid = contained is False or bool(listed & own.pids)
    foreign: dict[str, float | None] = {}
    for state in gpus:
        processes = state.gpu.processes
        if by_pid and state.pids is not None:
            foreign[state.uuid] = float(len(set(state.pids) - own.pids))
        else:
            foreign[state.uuid] = None if processes is None else max(0.0, processes - (state.uuid in own.gpus))
    return foreign
