"""CHECKS: clocks: slowed down by the hardware, or slower than the neighbours at the same work."""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

from gpumon.health.check import MINUTE, Check
from gpumon.health.facts import GpuCase
from gpumon.health.policy import SHARE, Limit, Range
from gpumon.health.sample_windows import SampleWindow, flag_held, with_labels
from gpumon.health.verdict import FAIL, OFF, PASSED, WARN, Action, Finding, fail, warn

WINDOW = 10 * MINUTE
REASONS = SampleWindow("gpumon_gpu_clock_event_active", WINDOW)
CLOCKS = SampleWindow("gpumon_gpu_clock_hertz", WINDOW)
BUSY = SampleWindow("gpumon_gpu_utilization_ratio", WINDOW)
SLOWED = Limit(
    "slowdown_seconds", 6 * MINUTE, "Seconds of ten minutes in which a GPU is slowed down.", Range(1, 10 * MINUTE)
)
CLOCK_SHARE = Limit(
    "straggler_clock_ratio", 0.9, "Clock, as a share of the median of a GPU's neighbours, that is slow.", SHARE
)
BUSY_SHARE = Limit("straggler_utilization_ratio", 0.8, "Utilization from which on clocks are compared.", SHARE)
FEWEST = 3
"""Busy GPUs of the same product, below which there is no telling who is slow."""
_HEAVIER = 0.25
"""Share of time by which a GPU runs into its power limit more than its neighbours: its work is another."""
_HARDWARE = ("hw_slowdown", "hw_thermal")
_WORDS = {
    "sw_power_cap": "power limit",
    "hw_slowdown": "hardware slowdown",
    "sw_thermal": "heat",
    "hw_thermal": "heat (hardware)",
    "hw_power_brake": "power brake",
    "applications_clocks": "clocks set by somebody",
    "sync_boost": "sync boost",
    "board_limit": "board limit",
    "reliability": "reliability",
}

_RESET = frozenset({"applications_clocks", "sw_power_cap", "sync_boost"})
"""Settings, which a reset takes back; it may end what has no reason. It cools no GPU, and mends no supply of power."""


def slowdown(gpu: GpuCase) -> Finding | None:
    """One point of it is no slowdown, and all of a window need not be known to tell."""
    least = gpu.facts.limit(SLOWED)
    if least is None:
        return OFF
    if gpu.now.clock_event_active is None:
        return None
    series = gpu.series(REASONS)
    hardware = [flag_held(with_labels(series, reason=reason), REASONS, least) for reason in _HARDWARE]
    software = flag_held(with_labels(series, reason="sw_thermal"), REASONS, least)
    if True in hardware:
        reason = f"The hardware slowed it down for at least {least / MINUTE:.0f} of the last 10 minutes."
        return fail(reason, Action.INSPECT, **_clock(gpu))
    if software:
        reason = f"It slowed down for heat for at least {least / MINUTE:.0f} of the last 10 minutes."
        return warn(reason, Action.INSPECT, **_clock(gpu))
    return PASSED if False in hardware and software is False else None


def _clock(gpu: GpuCase) -> dict[str, float]:
    clock = (gpu.now.clock_hertz or {}).get("sm")
    return {} if clock is None else {"sm_clock_hertz": clock}


_EXCUSED = 0.6
"""Share of the neighbours' clock down to which work that needs more power may bring it."""


class _Pace(NamedTuple):
    """Of one busy GPU over the window."""

    uuid: str
    clock: float
    """Hz, mean of the SMs'."""
    capped: float
    """Share of time at the power limit."""


def straggler(gpu: GpuCase) -> Finding | None:
    """Other work may need more power, and clock less: it stands at the power limit while the others do not."""
    share, load = gpu.facts.limit(CLOCK_SHARE), gpu.facts.limit(BUSY_SHARE)
    if share is None or load is None:
        return OFF
    if _pace(gpu, load) is None:
        return None
    paces = [pace for one in _alike(gpu) if (pace := _pace(one, load))]
    if len(paces) < FEWEST:
        return None
    own = next(pace for pace in paces if pace.uuid == gpu.state.uuid)
    middle = median(pace.clock for pace in paces)
    heavier = own.capped - median(pace.capped for pace in paces) > _HEAVIER
    if own.clock >= share * middle or (heavier and own.clock >= _EXCUSED * middle):
        return PASSED
    named = _reasons(gpu)
    words = ", ".join(_WORDS[name] for name in named) or "it names no reason"
    reason = f"It clocks {own.clock / 1e6:.0f} MHz where its busy neighbours clock {middle / 1e6:.0f}: {words}."
    action = Action.RESET if _RESET.issuperset(named) else Action.INSPECT
    return warn(reason, action, sm_clock_hertz=round(own.clock), median_hertz=round(middle))


def _alike(gpu: GpuCase) -> list[GpuCase]:
    """The GPUs of the same product, this one included; MIG has no utilization, and none of them is busy."""
    return [one for one in gpu.facts.gpu_cases if one.now.name == gpu.now.name]


def _pace(gpu: GpuCase, load: float) -> _Pace | None:
    """None of a GPU that was not busy for the whole window."""
    if gpu.now.utilization_ratio is None:
        return None
    busy = gpu.mean(BUSY)
    if busy is None or busy < load:
        return None
    clock = gpu.mean(CLOCKS, domain="sm")
    return None if clock is None else _Pace(gpu.state.uuid, clock, gpu.mean(REASONS, reason="sw_power_cap") or 0.0)


def _reasons(gpu: GpuCase) -> list[str]:
    active = {name for name, on in (gpu.now.clock_event_active or {}).items() if on}
    if "hw_thermal" in active:
        active.discard("sw_thermal")  # hardware slows down for heat when the driver has not helped
    return [name for name in _WORDS if name in active]


CHECKS = (
    Check(
        name="gpu_hw_slowdown",
        levels=(FAIL, WARN),
        help="The GPU is slowed down most of the time, by its hardware or for heat.",
        steps="""\
1. `nvidia-smi -q -d PERFORMANCE` names the reason: thermal is cooling, power brake is power, neither is the board.
2. Look at supplies and cables (the BMC's log), at fans, cold plates and inlet temperature.
3. Nothing found: reset the GPU; it comes again: replace the board.
""",
        gpu=slowdown,
        clear_after=2 * MINUTE,
        windows=(REASONS,),
        limits=(SLOWED,),
        inhibited_by={
            "gpu_thermal_margin_low": "same",
            "gpu_memory_temperature_high": "same",
            "gpu_power_brake": "same",
        },
    ),
    Check(
        name="gpu_clock_straggler",
        levels=(WARN,),
        help="The GPU clocks lower than its neighbours at the same work, and slows the whole job.",
        steps="""\
1. `nvidia-smi -q -d CLOCK,PERFORMANCE` on it and on a neighbour: application clocks, limits, reasons.
2. `nvidia-smi -rgc` and `-rac` take back clocks that somebody has set; then reset the GPU when it is free.
3. It comes again: cooling and power of this slot, then the board.
""",
        gpu=straggler,
        windows=(REASONS, CLOCKS, BUSY),
        limits=(CLOCK_SHARE, BUSY_SHARE),
        inhibited_by={
            "gpu_thermal_margin_low": "same",
            "gpu_memory_temperature_high": "same",
            "gpu_power_brake": "same",
            "gpu_power_cap_low": "same",
            "gpu_power_implausible": "same",
            "gpu_hw_slowdown": "same",
        },
    ),
)
