"""CHECKS: use of GPUs in the last hour: GPUs that processes held without use, and GPUs that were busy all the time."""

from __future__ import annotations

from gpumon.health.check_row import HOUR, MINUTE, Check, Paging
from gpumon.health.device_case import GpuCase
from gpumon.health.policy import SHARE, Limit
from gpumon.health.sample_windows import MIN_COVERAGE, SampleWindow, with_labels
from gpumon.health.verdict import PASSED, WARN, Finding, warn

BUSY_SECONDS = SampleWindow("gpumon_gpu_busy_seconds_total", HOUR)
OBSERVED_SECONDS = SampleWindow("gpumon_gpu_observed_seconds_total", HOUR)
PROCESSES = SampleWindow("gpumon_gpu_processes", HOUR)
IDLE = Limit("min_busy_ratio", 0.3, "Minimum busy share of an hour of a GPU that processes hold.", SHARE)
BUSY = Limit("max_busy_ratio", None, "Maximum busy share of an hour of a GPU, for example 0.85.", SHARE)


def idle(gpu: GpuCase) -> Finding | None:
    """Return a warning if processes held the GPU throughout the last hour and hardly used it, else PASSED."""
    limit = gpu.facts.threshold(IDLE)
    share, processes = _busy_share(gpu), with_labels(gpu.series(PROCESSES))
    if share is None or processes is None:
        return None
    if share >= limit or min(processes.values) == 0:
        return PASSED
    return warn(f"Processes held it for an hour in which it was busy {share:.0%} of the time.", busy_ratio=share)


def busy(gpu: GpuCase) -> Finding | None:
    """Return a warning if the GPU was busy for more than the configured share of the last hour, else PASSED."""
    limit = gpu.facts.threshold(BUSY)
    share = _busy_share(gpu)
    if share is None:
        return None
    if share <= limit:
        return PASSED
    return warn(f"It was busy {share:.0%} of the last hour, above the limit of {limit:.0%}.", busy_ratio=share)


def _busy_share(gpu: GpuCase) -> float | None:
    """Return the busy share of the last hour, 0 to 1; None if the agent has observed too little of that hour."""
    busy_seconds, observed = with_labels(gpu.series(BUSY_SECONDS)), with_labels(gpu.series(OBSERVED_SECONDS))
    if busy_seconds is None or observed is None or observed.gain < MIN_COVERAGE * HOUR:
        return None
    return busy_seconds.gain / observed.gain


CHECKS = (
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
        limits=(IDLE,),
        inhibited_by={"gpu_spin": "same"},
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
        limits=(BUSY,),
        pages=Paging.NEVER,
    ),
)
