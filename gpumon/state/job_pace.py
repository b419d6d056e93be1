"""Whether the GPUs of jobs move, compared with their own past. Pure.

Limits that are the same for all GPUs would not do: a GPU that waits for a peer draws little power on one product, and
much on another.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from gpumon.health.checks.jobs import STALL_DRAW, STALL_SPREAD
from gpumon.health.checks.work import SPIN_BUSY, SPIN_TRAFFIC
from gpumon.health.policy import Limit, Policy
from gpumon.model.allocation import Allocation, HolderProcess
from gpumon.model.gpu import Gpu
from gpumon.model.gpu_state import GpuState
from gpumon.model.instant import Now
from gpumon.model.job import IDLE, MOVING, OTHER, STILL, Job, JobGpu, JobProcess, Pace
from gpumon.state.allocations import JobState

MIN_TENSOR, MIN_LINKS, MAX_IDLE = 0.01, 0.01, 0.05
"""Minimum use of the tensor cores, and traffic as a share of the typical one, of a GPU that moves; maximum utilization
of one that is idle.
"""
TYPICAL_SECONDS = 300.0
"""Time constant of the typical power and traffic."""
GAP_SECONDS = 30.0
"""Time without a reading after which a motion begins again."""


def determine_motions(jobs: JobState, gpus: Sequence[GpuState], policy: Policy, now: Now) -> JobState:
    """Return the state after a tick, with the motion of each GPU that one owner holds alone."""
    passed = now.uptime - jobs.ticked_at.uptime if jobs.ticked_at else 0.0
    paces = {
        each.key: _next_pace(jobs.paces.get(each.key, Pace()), state, policy, now, passed)
        for state in gpus
        for each in _alone(_holders(jobs, state.uuid))
    }
    jobs = replace(jobs, paces=paces, ticked_at=now)
    return replace(jobs, jobs=tuple(_jobs(jobs, gpus)))


def _holders(jobs: JobState, uuid: str) -> list[Allocation]:
    """Return the allocations of a GPU that are in force; if there are none, those whose source is silent."""
    return [each for each in jobs.allocations if each.uuid == uuid] or list(jobs.of_gpu(uuid))


def _alone(held: list[Allocation]) -> list[Allocation]:
    """Return the allocation of a GPU that is neither shared nor divided into MIG instances; else nothing."""
    return held if len(held) == 1 and not held[0].mig_uuid else []


def _next_pace(pace: Pace, state: GpuState, policy: Policy, now: Now, passed: float) -> Pace:
    motion, power, at = _motion(pace, state, policy), state.gpu.power_watts or 0.0, now.uptime
    if motion is None:
        return pace
    is_gap = at - pace.read_at > GAP_SECONDS
    low, high = pace.power_range if motion == pace.motion == STILL else (power, power)
    low, high = min(low, power), max(high, power)
    spread = _limit(policy, STALL_SPREAD) * (pace.watts or 0.0)
    if motion != pace.motion or is_gap or high - low > spread:
        pace = replace(pace, motion=motion, since=at, power_range=(power, power))
    elif motion == STILL:
        pace = replace(pace, power_range=(low, high))
    if motion == STILL and pace.still_from is None:
        pace = replace(pace, still_from=at)
    pace = replace(pace, read_at=at)
    return _with_motion(pace, state, now, passed) if motion == MOVING else pace


def _with_motion(pace: Pace, state: GpuState, now: Now, passed: float) -> Pace:
    waited = 0.0 if pace.still_from is None else now.uptime - pace.still_from
    pace = replace(pace, still_from=None, longest_still=max(pace.longest_still, waited))
    power, seconds = state.gpu.power_watts or 0.0, pace.moving_seconds + passed
    weight = passed / min(TYPICAL_SECONDS, seconds) if passed else 1.0  # a mean at first
    watts = power if pace.watts is None else pace.watts + (power - pace.watts) * weight
    traffic = pace.link_bytes_per_second + (_link_traffic(state) - pace.link_bytes_per_second) * weight
    return replace(pace, moved_at=now.at, moving_seconds=seconds, watts=watts, link_bytes_per_second=traffic)


def _motion(pace: Pace, state: GpuState, policy: Policy) -> str | None:
    gpu = state.gpu
    if gpu.utilization_ratio is None or gpu.power_watts is None or (traffic := memory_traffic(gpu)) is None:
        return None
    uses_links = _link_traffic(state) > MIN_LINKS * pace.link_bytes_per_second > 0
    if traffic > _limit(policy, SPIN_TRAFFIC) or (gpu.tensor_active_ratio or 0.0) > MIN_TENSOR or uses_links:
        return MOVING
    if gpu.utilization_ratio <= MAX_IDLE:
        return IDLE
    is_cold = pace.watts is not None and gpu.power_watts <= _limit(policy, STALL_DRAW) * pace.watts
    return STILL if is_cold and gpu.utilization_ratio >= _limit(policy, SPIN_BUSY, math.inf) else OTHER


def _limit(policy: Policy, limit: Limit, if_off: float = 0.0) -> float:
    """Return a threshold. `if_off`: instead of one that is off (None), so that no GPU is still."""
    value = policy.limit(limit)
    return if_off if value is None else value


def memory_traffic(gpu: Gpu) -> float | None:
    """Return the share of the memory bandwidth that is used; without GPM, the share of time."""
    return gpu.memory_utilization_ratio if gpu.dram_active_ratio is None else gpu.dram_active_ratio


def _link_traffic(state: GpuState) -> float:
    return sum(rate for name, rate in state.link_rates.items() if name.startswith("nvlink_"))


def processes(jobs: JobState, read: Mapping[str, HolderProcess], at: float) -> Mapping[str, JobProcess]:
    """Return the processes on the GPUs, with what they used per second since the last turn of the reader."""
    return {pid: _process(jobs.processes.get(pid), process, at) for pid, process in read.items()}


def _process(before: JobProcess | None, process: HolderProcess, at: float) -> JobProcess:
    now = JobProcess(state=process.state, at=at, cpu_seconds=process.cpu_seconds, io_bytes=process.io_bytes)
    if before is None or at <= before.at:
        return now
    seconds = at - before.at
    return replace(
        now,
        cpu_ratio=_rate(before.cpu_seconds, now.cpu_seconds, seconds),
        io_bytes_per_second=_rate(before.io_bytes, now.io_bytes, seconds),
    )


def _rate(before: float | None, now: float | None, seconds: float) -> float | None:
    return None if before is None or now is None else max(0.0, now - before) / seconds


def _jobs(jobs: JobState, gpus: Sequence[GpuState]) -> Iterator[Job]:
    held: dict[str | None, list[tuple[Allocation, GpuState]]] = {}
    shared = set()
    for state in gpus:
        allocations = _holders(jobs, state.uuid)
        keys = [jobs.job_id(each.owner) for each in allocations]
        if allocations and not _alone(allocations):
            shared.update(keys)
        for key, each in zip(keys, allocations, strict=True):
            held.setdefault(key, []).append((each, state))
    yield from (_job(jobs, key, each) for key, each in held.items() if key is not None and key not in shared)


def _job(jobs: JobState, key: str, held: Sequence[tuple[Allocation, GpuState]]) -> Job:
    first, _ = held[0]
    return Job(
        id=key,
        owner=first.owner,
        source=first.source,
        at=jobs.ticked_at.uptime if jobs.ticked_at else 0.0,
        gpus=tuple(
            JobGpu(uuid=state.uuid, pace=jobs.paces.get(each.key, Pace()), processes=_processes_on(state, jobs))
            for each, state in held
        ),
        in_force=all(each.key not in jobs.suspended for each, _ in held),
    )


def _processes_on(state: GpuState, jobs: JobState) -> tuple[JobProcess, ...] | None:
    pids = None if state.pids is None else [str(pid) for pid in state.pids]
    if pids is None or not jobs.processes.keys() >= set(pids):
        return None
    return tuple(jobs.processes[pid] for pid in pids)
