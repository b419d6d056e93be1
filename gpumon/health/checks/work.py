"""CHECKS: use of GPUs: stuck processes, memory without a process, stalled kernels, settings, idle and busy GPUs."""

from __future__ import annotations

from gpumon.health.check_row import HOUR, MINUTE, Check, Paging
from gpumon.health.facts import Facts, GpuCase
from gpumon.health.policy import COUNT, SHARE, Limit, Range
from gpumon.health.products import is_coherent, is_utilization_latched
from gpumon.health.sample_windows import MIN_COVERAGE, SampleWindow, with_labels
from gpumon.health.verdict import FAIL, PASSED, WARN, Action, Finding, fail, warn

STUCK = Limit(
    "max_stuck_process_seconds",
    5 * MINUTE,
    "Maximum time for which a process that holds a GPU is blocked in the kernel.",
    COUNT,
)
ORPHANED = Limit(
    "orphaned_memory_bytes",
    4.0 * (1 << 30),
    "Minimum memory in use without a process, in bytes, that raises a verdict.",
    Range(1 << 20),
)
SPIN = 15 * MINUTE
BUSY = SampleWindow("gpumon_gpu_utilization_ratio", SPIN)
DRAW = SampleWindow("gpumon_gpu_power_watts", SPIN)
TRAFFIC = SampleWindow("gpumon_gpu_dram_active_ratio", SPIN)
MEMORY_BUSY = SampleWindow("gpumon_gpu_memory_utilization_ratio", SPIN)
SPIN_BUSY = Limit("spin_utilization_ratio", 0.95, "Minimum utilization of a busy GPU, which may be stalled.", SHARE)
SPIN_DRAW = Limit(
    "spin_power_ratio", 0.35, "Power, as a share of the limit, below which a busy GPU may be stalled.", SHARE
)
SPIN_TRAFFIC = Limit(
    "spin_dram_ratio",
    0.05,
    "Maximum share of the memory bandwidth (without GPM: of the time) that a stalled GPU uses.",
    Range(0, 1),
)


_PLACES = {
    False: "in the kernel, outside of NVIDIA's driver (a file system?),",
    None: "in the kernel (its stack cannot be read without root)",
    True: "in NVIDIA's driver",
}
"""Words for each value of StuckProcess.in_driver, the worst last."""


def process_stuck(facts: Facts) -> Finding | None:
    """Return a failure for processes stuck in NVIDIA's driver: their GPUs can be neither assigned nor reset.

    Elsewhere, as in a file system, they are a warning. gpumon_collector_denied reports a lack of permission.
    """
    limit = facts.threshold(STUCK)
    if facts.stuck is None:
        return None
    blocked = [process for process in facts.stuck if facts.now.at - process.since > limit]
    if not blocked:
        return PASSED
    in_driver = max((process.in_driver for process in blocked), key=tuple(_PLACES).index)
    stuck = [process for process in blocked if process.in_driver is in_driver]
    held = {minor for process in stuck for minor in process.gpus}
    gpus = ", ".join(str(state.index) for state in facts.gpus if state.gpu.minor in held)
    minutes = (facts.now.at - min(process.since for process in stuck)) / MINUTE
    processes = "A process that holds" if len(stuck) == 1 else f"{len(stuck)} processes that hold"
    devices = f"GPU {gpus}" if gpus else "NVIDIA's devices"
    have = "has" if len(stuck) == 1 else "have"
    reason = f"{processes} {devices} {have} been blocked {_PLACES[in_driver]} for {minutes:.0f} minutes."
    make, action = (fail, Action.REBOOT) if in_driver else (warn, Action.INSPECT)
    return make(reason, action, stuck_processes=float(len(stuck)), gpus=gpus)


def memory_orphaned(gpu: GpuCase) -> Finding | None:
    """Return a warning if GPU memory is in use without a process.

    Unknown in a container, whose processes NVML lists alone, and on a Grace host, whose kernel uses GPU memory.
    """
    now, limit = gpu.now, gpu.facts.threshold(ORPHANED)
    if now.memory_used_bytes is None or now.processes is None or gpu.facts.contained is not False:
        return None
    if now.mig_mode or gpu.state.c2c_links or is_coherent(now.name or ""):
        return None
    if now.memory_used_bytes < limit or now.processes:
        return PASSED
    reason = f"{now.memory_used_bytes / (1 << 30):.0f} GiB of its memory are in use without a process."
    return warn(reason, Action.RESET, memory_used_bytes=now.memory_used_bytes)


def spin(gpu: GpuCase) -> Finding | None:
    """Return a warning for 15 busy minutes with little power and no memory reads: a kernel seems to wait for a peer."""
    busy, low = gpu.facts.threshold(SPIN_BUSY), gpu.facts.threshold(SPIN_DRAW)
    limit, now = gpu.now.power_limit_watts, gpu.now.utilization_ratio
    if not limit or now is None:
        return None
    if now < busy or (gpu.now.processes == 0 and not gpu.facts.contained):
        return PASSED
    utilization, drawn, reads = gpu.mean(BUSY), with_labels(gpu.series(DRAW)), _reads_memory(gpu)
    if utilization is None or drawn is None or not drawn.covers(DRAW) or reads is None:
        return None
    draw = max(drawn.values)
    if utilization < busy or draw >= low * limit or reads:
        return PASSED
    at_most = f"at no more than {draw:.0f} W of {limit:.0f}"
    reason = f"It was busy {utilization:.0%} of 15 minutes {at_most}: its kernels probably wait for a peer."
    return warn(reason, Action.RESTART, utilization_ratio=round(utilization, 3), power_watts=round(draw))


def _reads_memory(gpu: GpuCase) -> bool | None:
    """Return whether the GPU reads its memory, as GPM or else NVML's memory utilization shows; None if unknown."""
    limit, traffic = gpu.facts.limit(SPIN_TRAFFIC), gpu.mean(TRAFFIC)
    if limit is None:
        return False
    if traffic is None:
        traffic = gpu.mean(MEMORY_BUSY)
    return None if traffic is None else traffic > limit


def utilization_latched(gpu: GpuCase) -> Finding | None:
    if gpu.now.utilization_ratio is None or gpu.now.processes is None:
        return None
    if not is_utilization_latched(gpu.now):
        return PASSED
    reason = (
        f"It reports {gpu.now.utilization_ratio:.0%} utilization without a process: the value is latched since a "
        "process was killed inside a kernel. A process that opens and closes a CUDA context clears it."
    )
    return warn(reason, utilization_ratio=gpu.now.utilization_ratio)


def persistence_off(gpu: GpuCase) -> Finding | None:
    mode = gpu.now.persistence_mode
    if mode is None:
        return None
    reason = "Persistence mode is off: each first user waits for the GPU, and settings and counters are lost."
    return PASSED if mode else warn(reason, persistence_mode=mode)


def settings_pending(gpu: GpuCase) -> Finding | None:
    now = gpu.now
    pairs = {"ECC": (now.ecc_mode, now.ecc_mode_pending), "MIG": (now.mig_mode, now.mig_mode_pending)}
    reported = {name: pair for name, pair in pairs.items() if None not in pair}
    if not reported:
        return None
    waiting = [f"{name} {'on' if pending else 'off'}" for name, (mode, pending) in reported.items() if mode != pending]
    if not waiting:
        return PASSED
    return warn(
        f"A change is pending until a reset: {' and '.join(waiting)}.", Action.RESET, pending=", ".join(waiting)
    )


BUSY_SECONDS = SampleWindow("gpumon_gpu_busy_seconds_total", HOUR)
OBSERVED_SECONDS = SampleWindow("gpumon_gpu_observed_seconds_total", HOUR)
PROCESSES = SampleWindow("gpumon_gpu_processes", HOUR)
MIN_BUSY = Limit("min_busy_ratio", 0.3, "Minimum busy share of an hour of a GPU that processes hold.", SHARE)
MAX_BUSY = Limit("max_busy_ratio", None, "Maximum busy share of an hour of a GPU, for example 0.85.", SHARE)


def idle(gpu: GpuCase) -> Finding | None:
    limit = gpu.facts.threshold(MIN_BUSY)
    share, processes = _busy_share(gpu), with_labels(gpu.series(PROCESSES))
    if share is None or processes is None:
        return None
    if share >= limit or min(processes.values) == 0:
        return PASSED
    return warn(f"Processes held it for an hour in which it was busy {share:.0%} of the time.", busy_ratio=share)


def busy(gpu: GpuCase) -> Finding | None:
    limit = gpu.facts.threshold(MAX_BUSY)
    share = _busy_share(gpu)
    if share is None:
        return None
    if share <= limit:
        return PASSED
    return warn(f"It was busy {share:.0%} of the last hour, above the limit of {limit:.0%}.", busy_ratio=share)


def _busy_share(gpu: GpuCase) -> float | None:
    """Return the busy share of the last hour; None if the agent has observed too little of that hour."""
    busy_seconds, observed = with_labels(gpu.series(BUSY_SECONDS)), with_labels(gpu.series(OBSERVED_SECONDS))
    if busy_seconds is None or observed is None or observed.gain < MIN_COVERAGE * HOUR:
        return None
    return busy_seconds.gain / observed.gain


CHECKS = (
    Check(
        name="gpu_process_stuck",
        levels=(FAIL, WARN),
        help="A process that holds a GPU is blocked in the kernel.",
        steps="""\
1. `ps -eo pid,stat,wchan:30,etime,comm | awk '$2 ~ /^D/'`, and `cat /proc/PID/stack` as root: is it in the driver?
2. In the driver (`[nvidia]`): drain and reboot the node. SIGKILL has no effect, and a reset is refused while the
   process holds the GPU.
3. Elsewhere: check the file system that the stack names, such as Lustre or NFS. The process continues when it answers.
""",
        node=process_stuck,
        limits=(STUCK,),
        inhibited_by={"gpu_driver_down": "node", "gpu_lost": "any", "gpu_stuck": "any", "allreduce_unkillable": "node"},
    ),
    Check(
        name="gpu_memory_orphaned",
        levels=(WARN,),
        help="Memory of the GPU is in use without a process.",
        steps="""\
1. `fuser -v /dev/nvidia*` as root: a process of a container that the driver does not list, or one that cannot exit?
2. End it. If there is none: drain the node and run `nvidia-smi --gpu-reset -i <uuid>`.
""",
        gpu=memory_orphaned,
        after=5 * MINUTE,
        limits=(ORPHANED,),
        inhibited_by={"gpu_process_stuck": "node"},
    ),
    Check(
        name="gpu_spin",
        levels=(WARN,),
        help="The GPU is busy all the time with low power, as when it waits for a peer.",
        steps="""\
1. All GPUs of a job: a collective waits. `gpumon explain` as root or as the job's user names the rank that does not,
   from its stacks and flight recorder: check the verdicts of its node.
2. Restart the job from its checkpoint.
3. If light work is intended (small kernels, one stream): lower `health.thresholds.spin_power_ratio`.
""",
        gpu=spin,
        windows=(BUSY, DRAW, TRAFFIC, MEMORY_BUSY),
        limits=(SPIN_BUSY, SPIN_DRAW, SPIN_TRAFFIC),
        inhibited_by={
            "job_stalled": "holder",
            "gpu_power_brake": "same",
            "gpu_power_implausible": "same",
            "gpu_hw_slowdown": "same",
        },
    ),
    Check(
        name="gpu_utilization_latched",
        levels=(WARN,),
        help="The utilization of an idle GPU stays at 100 %, because a process was killed inside a kernel.",
        steps="""\
1. The GPU is idle and works at full speed. Only the utilization of the driver is wrong: jobs are not affected.
2. Open and close a CUDA context: `CUDA_VISIBLE_DEVICES=UUID python3 -c "import torch; torch.zeros(1, device='cuda')"`.
3. End jobs with SIGTERM before SIGKILL, so that they close their CUDA context.
""",
        gpu=utilization_latched,
        after=5 * MINUTE,
        pages=Paging.NEVER,
    ),
    Check(
        name="gpu_persistence_off",
        levels=(WARN,),
        help="Persistence mode is off.",
        steps="""\
1. `systemctl enable --now nvidia-persistenced`; without that daemon, `nvidia-smi -pm 1` after each boot.
""",
        gpu=persistence_off,
        after=15 * MINUTE,
        pages=Paging.NEVER,
    ),
    Check(
        name="gpu_settings_pending",
        levels=(WARN,),
        help="A change of the GPU's ECC or MIG mode has been pending for an hour.",
        steps="""\
1. `nvidia-smi -q -d ECC` and `nvidia-smi --query-gpu=mig.mode.current,mig.mode.pending --format=csv`.
2. If intended: reset the GPU when it is idle. If not: revert it (`nvidia-smi -e 1`, `nvidia-smi -mig 0`).
""",
        gpu=settings_pending,
        after=HOUR,
        clear_after=0.0,
        pages=Paging.NEVER,
    ),
)

USE_CHECKS = (
    Check(
        name="gpu_idle",
        levels=(WARN,),
        help="Processes hold the GPU and hardly use it.",
        steps="""\
1. `nvidia-smi` on the host, or the job scheduler, shows who holds it.
2. A notebook left open, a job that waits for its input, a rank that waits for another: ask its owner.
""",
        gpu=idle,
        clear_after=15 * MINUTE,
        windows=(BUSY_SECONDS, OBSERVED_SECONDS, PROCESSES),
        limits=(MIN_BUSY,),
        inhibited_by={"gpu_spin": "same", "gpu_held_idle": "same"},
        pages=Paging.NEVER,
    ),
    Check(
        name="gpu_busy",
        levels=(WARN,),
        help="The GPU has been busy nearly all the time.",
        steps="""\
1. Training: a busy GPU is intended. The check is off until its threshold is set.
2. Inference: the node has no reserve. Add replicas, or move work to idle GPUs.
""",
        gpu=busy,
        clear_after=15 * MINUTE,
        windows=(BUSY_SECONDS, OBSERVED_SECONDS),
        limits=(MAX_BUSY,),
        pages=Paging.NEVER,
    ),
)
