"""CHECKS: GPU power: power brakes, limits that are too low, implausible readings."""

from __future__ import annotations

from gpumon.health.check_row import MINUTE, Check, Paging
from gpumon.health.facts import GpuCase
from gpumon.health.policy import AMOUNT, SHARE, Limit, Range
from gpumon.health.sample_windows import STEP, SampleWindow, with_labels
from gpumon.health.verdict import FAIL, PASSED, WARN, Action, Finding, fail, warn
from gpumon.model.gpu import Gpu

BRAKED = SampleWindow("gpumon_gpu_clock_event_seconds_total", 2 * MINUTE)
BRAKING = SampleWindow("gpumon_gpu_clock_event_active", 2 * MINUTE)
BRAKED_OFTEN = Limit(
    "max_power_brake_ratio",
    0.1,
    "Maximum share of two minutes in which the power brake is active; more is a warning.",
    SHARE,
    "power_brake_ratio",
)
BRAKED_MOSTLY = Limit(
    "power_brake_ratio", 0.5, "Minimum share of two minutes of an active power brake that is a failure.", SHARE
)
CAPPED = SampleWindow("gpumon_gpu_clock_event_active", 30 * MINUTE)
CAPPED_SHARE = Limit(
    "max_power_capped_ratio", 0.8, "Maximum share of half an hour in which a low limit restricts the GPU.", SHARE
)
LIMIT_SHARE = Limit("min_power_limit_ratio", 0.8, "Minimum power limit, as a share of the board's default.", SHARE)
MIN_WATTS = Limit("min_power_watts", 12.0, "Minimum plausible power under load in watts.", AMOUNT)
MIN_DRAW = Limit("min_power_ratio", 0.05, "Minimum plausible power under load, as a share of the limit.", Range(0, 1))
MAX_DRAW = Limit("max_power_ratio", 1.25, "Maximum plausible power, as a share of the highest limit.", Range(1, 10))
LOADED = 0.8
"""Minimum utilization at which a GPU is under load."""
_TOLERANCE = 0.99
"""Share of the requested limit below which a limit counts as too low. A difference of 1 % may be due to rounding."""


def brake(gpu: GpuCase) -> Finding | None:
    """Return a failure if the power brake was active mostly, a warning if often. Short brakes are transients."""
    share, often, mostly = _braked_share(gpu), gpu.facts.limit(BRAKED_OFTEN), gpu.facts.limit(BRAKED_MOSTLY)
    if share is None:
        return None
    failed = mostly is not None and share >= mostly
    if not failed and (often is None or share <= often):
        return PASSED
    reason = (
        f"The power brake was active for {share:.0%} of two minutes: the power supplies or the rack request less power."
    )
    return (fail if failed else warn)(reason, Action.INSPECT, hw_power_brake_ratio=round(share, 2))


def _braked_share(gpu: GpuCase) -> float | None:
    """Return the share of two minutes in which the power brake was active; None if it cannot be read now."""
    now = (gpu.now.clock_event_seconds_total, gpu.now.clock_event_active)
    if all((reasons or {}).get("hw_power_brake") is None for reasons in now):
        return None
    counted, active = (with_labels(gpu.series(window), reason="hw_power_brake") for window in (BRAKED, BRAKING))
    if counted is not None and counted.gain:  # the first and the last point are up to STEP seconds inside the window
        return min(1.0, counted.gain / max(counted.covered_seconds, BRAKED.seconds - STEP))
    return 0.0 if active is None else active.mean * active.observed_seconds(BRAKING) / BRAKED.seconds


def cap(gpu: GpuCase) -> Finding | None:
    limit = gpu.facts.threshold(CAPPED_SHARE)
    if gpu.now.power_limit_watts is None:
        return None
    low = _low_limit_reason(gpu)
    if low is None:
        return PASSED
    share = gpu.mean(CAPPED, reason="sw_power_cap")
    if share is None:
        return None
    if share <= limit:
        return PASSED
    reason = (
        f"Its power limit of {gpu.now.power_limit_watts:.0f} W, {low}, restricted it for {share:.0%} of half an hour."
    )
    return warn(reason, Action.NONE, power_limit_watts=gpu.now.power_limit_watts, power_capped_ratio=round(share, 2))


def _low_limit_reason(gpu: GpuCase) -> str | None:
    now, share = gpu.now, gpu.facts.limit(LIMIT_SHARE)
    limit, requested, default = (
        now.power_limit_watts or 0.0,
        now.power_limit_requested_watts,
        now.power_limit_default_watts,
    )
    if requested is not None and limit < _TOLERANCE * requested:
        return f"set from outside below the {requested:.0f} W requested"
    if default is not None and share is not None and limit < share * default:
        return f"far below the board's {default:.0f} W"
    return None


def implausible_power(gpu: GpuCase) -> Finding | None:
    """Return a warning for a power that is too high, or too low under load. An idle GPU may draw almost nothing."""
    draw, limit = gpu.now.power_watts, gpu.now.power_limit_watts
    min_ratio, max_ratio = gpu.facts.limit(MIN_DRAW), gpu.facts.limit(MAX_DRAW)
    if draw is None or not limit:
        return None
    highest = max(limit, gpu.now.power_limit_max_watts or 0.0)
    if max_ratio is not None and draw > max_ratio * highest:
        return _implausible_finding(gpu.now, f"of at most {highest:.0f} W")
    if draw >= max((min_ratio or 0.0) * limit, gpu.facts.limit(MIN_WATTS) or 0.0):
        return PASSED
    return _implausible_finding(gpu.now, "under load") if (gpu.now.utilization_ratio or 0.0) >= LOADED else None


def _implausible_finding(now: Gpu, words: str) -> Finding:
    reason = f"It reports a power draw of {now.power_watts:.0f} W {words}: this is not plausible."
    return warn(
        reason, Action.INSPECT, power_watts=now.power_watts or 0.0, power_limit_watts=now.power_limit_watts or 0.0
    )


CHECKS = (
    Check(
        name="gpu_power_brake",
        levels=(FAIL, WARN),
        pages=Paging.NEVER,  # one node is drained; GpuManyPowerBrakes pages
        help="The power brake slows the GPU down.",
        steps="""\
1. One node: a power supply that failed or lost its feed (the BMC's log).
   Many nodes, or all of a rack: the rack's feed or power cap, not the GPUs. Do not replace GPUs.
2. `nvidia-smi -q -d PERFORMANCE` shows `HW Power Brake Slowdown: Active`; jobs run at a fraction of their speed.
3. If it persists with all supplies healthy, the board's or the tray's power circuit is at fault.
""",
        gpu=brake,
        after=3 * MINUTE,
        clear_after=10 * MINUTE,  # it comes and goes with the load of the rack
        windows=(BRAKED, BRAKING),
        limits=(BRAKED_OFTEN, BRAKED_MOSTLY),
    ),
    Check(
        name="gpu_power_cap_low",
        levels=(WARN,),
        help="A power limit that is too low restricts the GPU nearly all the time.",
        steps="""\
1. `nvidia-smi -q -d POWER`: compare current, requested and default limit.
2. Lower than requested: a cap from outside, such as the BMC's or the rack's. Is it intended?
3. Requested by an operator: change it with `nvidia-smi -pl`, or lower `health.thresholds.min_power_limit_ratio`.
""",
        gpu=cap,
        windows=(CAPPED,),
        limits=(CAPPED_SHARE, LIMIT_SHARE),
        pages=Paging.NEVER,
    ),
    Check(
        name="gpu_power_implausible",
        levels=(WARN,),
        help="The power draw that the GPU reports is not plausible.",
        steps="""\
1. Compare with the BMC, or with the energy of neighbours under the same load.
2. The sensor is faulty, and so is power limiting. Drain and reset the GPU. If it recurs, replace the board.
""",
        gpu=implausible_power,
        after=5 * MINUTE,
        limits=(MIN_WATTS, MIN_DRAW, MAX_DRAW),
    ),
)
