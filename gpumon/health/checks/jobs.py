"""CHECKS: GPUs that an owner holds."""

from __future__ import annotations

from gpumon.health.check_row import HOUR, MINUTE, Check, Paging
from gpumon.health.facts import GpuCase
from gpumon.health.policy import SHARE, Limit
from gpumon.health.sample_windows import MIN_COVERAGE, SampleWindow, with_labels
from gpumon.health.verdict import PASSED, WARN, Finding, warn

HELD = SampleWindow("gpumon_gpu_allocated_seconds_total", HOUR)
IDLE = SampleWindow("gpumon_gpu_idle_seconds_total", HOUR)
MAX_IDLE = Limit(
    "max_held_idle_ratio", 0.9, "Maximum idle share of an hour of a GPU that an owner holds, whatever the level.", SHARE
)
_LEVELS = {"no_process": "without a process", "no_kernel": "without a kernel", "cold": "with kernels that hardly work"}


def held_idle(gpu: GpuCase) -> Finding | None:
    """Return a warning for a GPU that an owner has held for an hour without use; its reason names the owner."""
    limit, held = gpu.facts.threshold(MAX_IDLE), with_labels(gpu.series(HELD))
    if held is None or held.gain < MIN_COVERAGE * HOUR:
        return None if held is None else PASSED
    levels = {each.labels["level"]: each.gain / held.gain for each in gpu.series(IDLE)}
    share = sum(levels.values())
    if share <= limit:
        return PASSED
    owner, worst = gpu.facts.holders.get(gpu.device, "Its owner"), max(levels, key=lambda level: levels[level])
    reason = f"{owner} has held it for an hour in which it was idle {share:.0%} of the time, mostly {_LEVELS[worst]}."
    return warn(reason, idle_ratio=round(share, 3), level=worst)


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
        windows=(HELD, IDLE),
        limits=(MAX_IDLE,),
        inhibited_by={"gpu_spin": "same"},
        pages=Paging.NEVER,
    ),
)
