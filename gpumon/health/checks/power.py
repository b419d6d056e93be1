"""CHECKS: power: brakes, limits that somebody else has set, a draw that cannot be."""

from __future__ import annotations

from gpumon.health.check import MINUTE, Check
from gpumon.health.facts import GpuCase
from gpumon.health.policy import AMOUNT, SHARE, Limit, Range
from gpumon.health.sample_windows import SampleWindow, with_labels
from gpumon.health.verdict import OFF, PASSED, WARN, Action, Finding, fail, warn
from gpumon.model.gpu import Gpu

BRAKED = SampleWindow("gpumon_gpu_clock_event_seconds_total", MINUTE)
CAPPED = SampleWindow("gpumon_gpu_clock_event_active", 30 * MINUTE)
CAPPED_SHARE = Limit(
    "power_capped_ratio", 0.8, "Share of half an hour in which a limit that is too low holds back.", SHARE
)
LIMIT_SHARE = Limit("power_limit_ratio", 0.8, "Power limit, as a share of the board's default, that is too low.", SHARE)
LEAST_WATTS = Limit("min_power_watts", 12.0, "Power under load that no GPU can do with, however small it is.", AMOUNT)
LEAST_DRAW = Limit(
    "min_power_ratio", 0.05, "Power under load, as a share of the limit, that no GPU can do with.", Range(0, 1)
)
MOST_DRAW = Limit(
    "max_power_ratio", 1.25, "Power, as a share of the highest limit, that no GPU can draw.", Range(1, 10)
)
LOADED = 0.8
"""Utilization from which on a GPU is under load."""
_TOLERANCE = 0.99
"""Limits are told in milliwatts, and rounded on the way."""


def brake(gpu: GpuCase) -> Finding | None:
    """A brake that comes and goes shows in its counter alone."""
    active = (gpu.now.clock_event_active or {}).get("hw_power_brake")
    counted = with_labels(gpu.series(BRAKED), reason="hw_power_brake")
    if active is None and counted is None:
        return None
    gained = counted.gain if counted is not None else 0.0
    if not active and gained <= 0:
        return PASSED
    reason = "The power brake holds it down: the supplies, or the rack, ask for less power at once."
    return fail(reason, Action.INSPECT, hw_power_brake_active=active or 0.0, hw_power_brake_seconds=gained)


def cap(gpu: GpuCase) -> Finding | None:
    """Running into the board's own limit, or the one that was asked for, is what limits are for."""
    most = gpu.facts.limit(CAPPED_SHARE)
    if most is None:
        return OFF
    if gpu.now.power_limit_watts is None:
        return None
    low = _too_low(gpu)
    if low is None:
        return PASSED
    share = gpu.mean(CAPPED, reason="sw_power_cap")
    if share is None:
        return None
    if share <= most:
        return PASSED
    reason = f"Its power limit of {gpu.now.power_limit_watts:.0f} W, {low}, held it back {share:.0%} of half an hour."
    return warn(reason, Action.NONE, power_limit_watts=gpu.now.power_limit_watts, power_capped_ratio=round(share, 2))


def _too_low(gpu: GpuCase) -> str | None:
    """In words, beside what the limit is too low."""
    now, share = gpu.now, gpu.facts.limit(LIMIT_SHARE)
    limit, asked, default = now.power_limit_watts or 0.0, now.power_limit_requested_watts, now.power_limit_default_watts
    if asked is not None and limit < _TOLERANCE * asked:
        return f"set from outside below the {asked:.0f} W asked for"
    if default is not None and share is not None and limit < share * default:
        return f"well below the board's {default:.0f} W"
    return None


def implausible(gpu: GpuCase) -> Finding | None:
    """Idle, any GPU may draw next to nothing."""
    draw, limit = gpu.now.power_watts, gpu.now.power_limit_watts
    least, most = gpu.facts.limit(LEAST_DRAW), gpu.facts.limit(MOST_DRAW)
    if draw is None or not limit:
        return None
    highest = max(limit, gpu.now.power_limit_max_watts or 0.0)
    if most is not None and draw > most * highest:
        return _implausible(gpu.now, f"of at most {highest:.0f} W")
    if draw >= max((least or 0.0) * limit, gpu.facts.limit(LEAST_WATTS) or 0.0):
        return PASSED
    return _implausible(gpu.now, "under load") if (gpu.now.utilization_ratio or 0.0) >= LOADED else None


def _implausible(now: Gpu, words: str) -> Finding:
    reason = f"It says that it draws {now.power_watts:.0f} W {words}: that cannot be."
    return warn(
        reason, Action.INSPECT, power_watts=now.power_watts or 0.0, power_limit_watts=now.power_limit_watts or 0.0
    )


CHECKS = (
    Check(
        name="gpu_power_brake",
        help="The power brake slows the GPU down.",
        steps="""\
1. One node: a power supply that failed or lost its feed (the BMC's log). Many at once: the rack's or row's power cap.
2. `nvidia-smi -q -d PERFORMANCE` says `HW Power Brake Slowdown: Active`; jobs run at a fraction of their speed.
3. It stays with all supplies well: the board's or the tray's power circuit is at fault.
""",
        gpu=brake,
        after=2 * MINUTE,
        windows=(BRAKED,),
    ),
    Check(
        name="gpu_power_cap_low",
        levels=(WARN,),
        help="A power limit that is lower than it should be holds the GPU back nearly always.",
        steps="""\
1. `nvidia-smi -q -d POWER`: current limit, requested limit, default limit.
2. Lower than requested: a cap from outside, such as the BMC's or the rack's. Is it meant?
3. Requested so by somebody: `nvidia-smi -pl` sets it; meant so, set `health.thresholds.power_limit_ratio` lower.
""",
        gpu=cap,
        windows=(CAPPED,),
        limits=(CAPPED_SHARE, LIMIT_SHARE),
        pages=False,
    ),
    Check(
        name="gpu_power_implausible",
        levels=(WARN,),
        help="The power that the GPU says it draws cannot be.",
        steps="""\
1. Compare with the BMC, or with the energy that the neighbours used under the same load.
2. The sensor is wrong: power limits that rely on it are as well. Reset the GPU; it comes again: replace the board.
""",
        gpu=implausible,
        after=5 * MINUTE,
        limits=(LEAST_WATTS, LEAST_DRAW, MOST_DRAW),
    ),
)
