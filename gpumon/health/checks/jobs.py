"""CHECKS: jobs that do not move, and GPUs that an owner holds idle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpumon.health.check_row import HOUR, MINUTE, Check, Paging, held
from gpumon.health.facts import GpuCase, JobCase
from gpumon.health.policy import SHARE, Limit, Range
from gpumon.health.sample_windows import MIN_COVERAGE, SampleWindow, with_labels
from gpumon.health.verdict import PASSED, WARN, Finding, warn
from gpumon.model.job import MOVING, OTHER, STILL, Job, JobGpu

HELD_SECONDS = SampleWindow("gpumon_gpu_allocated_seconds_total", HOUR)
IDLE_SECONDS = SampleWindow("gpumon_gpu_idle_seconds_total", HOUR)
MAX_IDLE = Limit(
    "max_held_idle_ratio", 0.9, "Maximum idle share of an hour of a GPU that an owner holds, whatever the level.", SHARE
)
_LEVELS = {"no_process": "without a process", "no_kernel": "without a kernel", "cold": "with kernels that hardly work"}


def held_idle(gpu: GpuCase) -> Finding | None:
    """Return a warning for a GPU that an owner has held for an hour without use; its reason names the owner."""
    limit, allocated = gpu.facts.threshold(MAX_IDLE), with_labels(gpu.series(HELD_SECONDS))
    if allocated is None or allocated.gain < MIN_COVERAGE * HOUR:
        return None if allocated is None else PASSED
    levels = {each.labels["level"]: each.gain / allocated.gain for each in gpu.series(IDLE_SECONDS)}
    share = sum(levels.values())
    if share <= limit:
        return PASSED
    owner, worst = gpu.facts.holders.get(gpu.device, "Its owner"), max(levels, key=lambda level: levels[level])
    reason = f"{owner} has held it for an hour in which it was idle {share:.0%} of the time, mostly {_LEVELS[worst]}."
    return warn(reason, idle_ratio=round(share, 3), level=worst)


STALL = Limit(
    "min_stall_seconds",
    3 * MINUTE,
    "Minimum time for which all GPUs of a job are still. At least twice as long as the job was still before and moved "
    "again.",
    Range(30),
)
STALL_DOUBT = Limit(
    "min_doubtful_stall_seconds",
    10 * MINUTE,
    "The same if the job has one GPU on this node, or if the process of an idle GPU is neither stopped nor gone.",
    Range(30),
)
MOVED = Limit("min_moving_seconds", 10 * MINUTE, "Minimum time for which each GPU of the job moved before.", Range(0))
STALL_DRAW = Limit(
    "max_stall_power_ratio", 0.6, "Maximum power of a still GPU, as a share of its power while the job moved.", SHARE
)
STALL_SPREAD = Limit(
    "max_stall_power_spread_ratio", 0.05, "Maximum change of that power, as a share of the same.", SHARE
)
MAX_CPU, MAX_IO = 0.1, 1e6
"""Maximum CPU time per second of a process that waits; minimum bytes per second of one that reads or writes files."""


def stalled(job: JobCase) -> Finding | None:
    """Return a warning for a job whose GPUs have moved and are all still, or are idle for a reason that is known.

    Idle GPUs alone prove nothing: inference is idle for minutes between requests, and a job is while it saves a
    checkpoint. Such a GPU counts if its process is stopped, has ended, or waits without CPU time while others are busy.
    None while a process of the job waits for a disk, or its cgroup reads or writes.
    """
    facts, gpus, is_open = job.facts, job.job.gpus, job.has_verdict("job_stalled")
    moved = facts.threshold(MOVED)
    motions = [gpu.pace.motion_at(job.job.at) for gpu in gpus]
    if None in motions or not job.job.in_force:
        return None
    if is_open and MOVING not in motions and any(gpu.pace.watts is None for gpu in gpus):
        return None  # since a restart of the agent the job has not moved, so there is nothing to compare it with
    if MOVING in motions or OTHER in motions:
        return PASSED
    states = _states(gpus, contained=facts.contained)
    lasted, patience = job.job.at - max(gpu.pace.since for gpu in gpus), _patience(job, states)
    if not is_open and (lasted < patience or min(gpu.pace.moving_seconds for gpu in gpus) < moved):
        return PASSED
    if waits_for_storage(gpus):
        return None
    return _stall(job, lasted, states) if _is_proven(states) else PASSED


def is_active(job: Job, *, contained: bool | None) -> bool | None:
    """Return whether GPUs of the job on other nodes may wait for this node; None if its GPUs cannot be read.

    They do not if each GPU here waits too, or is idle because its process is stopped, has ended or uses no CPU time.
    """
    motions = [gpu.pace.motion_at(job.at) for gpu in job.gpus]
    if None in motions:
        return None
    moves = MOVING in motions or OTHER in motions
    return moves or waits_for_storage(job.gpus) or _IDLE in _states(job.gpus, contained=contained)


def _states(gpus: Sequence[JobGpu], *, contained: bool | None) -> list[str]:
    # In a container without the host's process ids, NVML lists the agent's own processes only.
    return [_state(gpu if contained is False else replace(gpu, processes=None)) for gpu in gpus]


def _patience(job: JobCase, states: Sequence[str]) -> float:
    """Return the seconds for which the GPUs must not move: longer if in doubt, and after a long wait that ended."""
    gpus = job.job.gpus
    limit = job.facts.threshold(STALL_DOUBT if len(gpus) == 1 or _WAITS in states else STALL)
    return max(limit, *(2 * gpu.pace.longest_still for gpu in gpus))


def waits_for_storage(gpus: Sequence[JobGpu]) -> bool:
    """Return whether a process on these GPUs waits for a disk, or its cgroup reads or writes: that is no stall."""
    processes = [process for gpu in gpus for process in gpu.processes or ()]
    return any(each.state == "D" or (each.io_bytes_per_second or 0.0) > MAX_IO for each in processes)


_SPINS, _IDLE = "busy without work", "idle"
_ENDED, _STOPPED, _WAITS = "idle, its process has ended", "idle, its process is stopped (state T)", "idle, no CPU time"


def _state(gpu: JobGpu) -> str:
    """Return what a GPU that does not move does, and why its process is blocked if that is known."""
    if gpu.pace.motion == STILL:
        return _SPINS
    if not gpu.processes:
        return _IDLE if gpu.processes is None else _ENDED
    if all(each.state in "Tt" for each in gpu.processes):
        return _STOPPED
    waits = all(each.state == "S" and each.cpu_ratio is not None and each.cpu_ratio < MAX_CPU for each in gpu.processes)
    return _WAITS if waits else _IDLE


def _is_proven(states: Sequence[str]) -> bool:
    """Return whether these states show that the job hangs, rather than that it was suspended, or does something else.

    If all GPUs are idle, one process must be stopped, or gone: but most are gone if the job ends rank by rank.
    """
    if _SPINS in states or _IDLE in states:
        return _IDLE not in states
    ended = 0 < 2 * states.count(_ENDED) < len(states)
    return len(set(states)) > 1 and (_STOPPED in states or ended)


def _stall(job: JobCase, lasted: float, states: Sequence[str]) -> Finding:
    facts, gpus = job.facts, job.job.gpus
    indexes = {state.uuid: state.index for state in facts.gpus}
    moved = {indexes[gpu.uuid]: facts.now.at - (gpu.pace.moved_at or facts.now.at) for gpu in gpus}
    by_state: dict[str, list[str]] = {}
    for gpu, state in zip(gpus, states, strict=True):
        by_state.setdefault(state, []).append(str(indexes[gpu.uuid]))
    words = (f"GPU {', '.join(numbers)}: {state}." for state, numbers in by_state.items())
    return warn(
        f"Its GPUs have not moved for {lasted / MINUTE:.1f} minutes. {' '.join(words)}",
        stalled_seconds=round(lasted),
        seconds_since_moving=", ".join(f"GPU {index} {seconds:.0f}" for index, seconds in sorted(moved.items())),
    )


STALL_CHECKS = (
    Check(
        name="job_stalled",
        levels=(WARN,),
        help="The GPUs of the job do not move any more.",
        steps="""\
1. `gpumon explain JOB` on the node, as root or as the job's user, names the rank that the others wait for, and the line
   of code: before the job is ended, because a dump is gone with it.
2. Job on several nodes: begin with the node whose GPUs stopped first (`gpumon_job_last_moving_timestamp_seconds`).
3. Restart the job from its checkpoint, or wait: NCCL ends a collective that hangs after its own timeout, by default ten
   minutes.
4. Long waits are intended (a barrier while one rank evaluates): raise `health.thresholds.min_stall_seconds`.
""",
        job=stalled,
        limits=(STALL, STALL_DOUBT, MOVED, STALL_DRAW, STALL_SPREAD),
        inhibited_by={"gpu_driver_down": "node", **held("gpu_lost", "gpu_missing", "gpu_stuck", "gpu_xid_critical")},
    ),
)

IDLE_CHECKS = (
    Check(
        name="gpu_held_idle",
        levels=(WARN,),
        help="An owner holds the GPU and does not use it.",
        steps="""\
1. `gpumon jobs` names the owner, and since when it holds the GPU: ask it, or end what it has forgotten.
2. Without a process: an allocation that waits, or a job whose processes have died. Without a kernel: a notebook, or a
   job that waits for its input.
3. `gpumon usage --since 7d --by user` adds up who holds idle GPUs.
""",
        gpu=held_idle,
        clear_after=15 * MINUTE,
        windows=(HELD_SECONDS, IDLE_SECONDS),
        limits=(MAX_IDLE,),
        inhibited_by={"job_stalled": "holder", "gpu_spin": "same"},
        pages=Paging.NEVER,
    ),
)
