"""CHECKS: GPU clocks that the hardware reduces, or that are lower than those of neighbours with the same work."""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

from gpumon.health.check_row import MINUTE, Check, same
from gpumon.health.facts import GpuCase
from gpumon.health.policy import SHARE, Limit, Range
from gpumon.health.products import is_utilization_latched
from gpumon.health.sample_windows import SampleWindow, flag_was_set, with_labels
from gpumon.health.verdict import FAIL, PASSED, WARN, Action, Finding, fail, warn

WINDOW = 10 * MINUTE
REASONS = SampleWindow("gpumon_gpu_clock_event_active", WINDOW)
CLOCKS = SampleWindow("gpumon_gpu_clock_hertz", WINDOW)
BUSY = SampleWindow("gpumon_gpu_utilization_ratio", WINDOW)
SLOWED = Limit(
    "slowdown_seconds",
    6 * MINUTE,
    "Minimum number of seconds of slowdown in ten minutes that raises a verdict.",
    Range(1, 10 * MINUTE),
)
CLOCK_SHARE = Limit(
    "min_straggler_clock_ratio", 0.9, "Minimum clock, as a share of the median of the GPU's neighbours.", SHARE
)
BUSY_SHARE = Limit("straggler_utilization_ratio", 0.8, "Minimum utilization at which clocks are compared.", SHARE)
FEWEST = 3
"""Minimum number of busy GPUs of the same product for a comparison."""
_HEAVIER = 0.25
"""Share of time at the power limit above the neighbours' median, from which a GPU counts as running heavier work."""
_HARDWARE = ("hw_slowdown", "hw_thermal")
_WORDS = {
    "sw_power_cap": "power limit",
    "hw_slowdown": "hardware slowdown",
    "sw_thermal": "heat",
    "hw_thermal": "heat (hardware)",
    "hw_power_brake": "power brake",
    "applications_clocks": "clocks set by an operator",
    "sync_boost": "sync boost",
    "board_limit": "board limit",
    "reliability": "reliability",
}

_RESET = frozenset({"applications_clocks", "sw_power_cap", "sync_boost"})
"""Clocks event reasons for which the action is a reset, which restores settings; it is a reset too without a reason."""


def slowdown(gpu: GpuCase) -> Finding | None:
    """Return a failure if the hardware reduced the clocks for too long, a warning if the driver did because of heat."""
    limit = gpu.facts.threshold(SLOWED)
    if gpu.now.clock_event_active is None:
        return None
    series = gpu.series(REASONS)
    hardware = [flag_was_set(with_labels(series, reason=reason), REASONS, limit) for reason in _HARDWARE]
    software = flag_was_set(with_labels(series, reason="sw_thermal"), REASONS, limit)
    if True in hardware:
        reason = f"The hardware reduced its clocks for at least {limit / MINUTE:.0f} of the last 10 minutes."
        return fail(reason, Action.INSPECT, **_clock(gpu))
    if software:
        reason = (
            f"The driver reduced its clocks because of heat for at least {limit / MINUTE:.0f} of the last 10 minutes."
        )
        return warn(reason, Action.INSPECT, **_clock(gpu))
    return PASSED if False in hardware and software is False else None


def _clock(gpu: GpuCase) -> dict[str, float]:
    clock = (gpu.now.clock_hertz or {}).get("sm")
    return {} if clock is None else {"sm_clock_hertz": clock}


_EXCUSED = 0.6
"""Lowest clock, as a share of the median of the GPU's neighbours, that heavier work explains."""


class _Pace(NamedTuple):
    """Pace of one busy GPU over the window."""

    uuid: str
    clock: float
    """Median SM clock in Hz: one minute without work, with the clock of an idle GPU, does not count."""
    capped: float
    """Share of the window in which the power limit reduced the clocks, 0 to 1."""


def straggler(gpu: GpuCase) -> Finding | None:
    """Return a warning if the clock is much lower than the median of the busy GPUs of the same product.

    A GPU that was at its power limit for longer passes unless its clock is below _EXCUSED of the median.
    """
    share, load = gpu.facts.threshold(CLOCK_SHARE), gpu.facts.threshold(BUSY_SHARE)
    if _pace(gpu, load) is None:
        return None
    same_product = (case for case in gpu.facts.gpu_cases if case.now.name == gpu.now.name)
    paces = [pace for case in same_product if (pace := _pace(case, load))]
    if len(paces) < FEWEST:
        return None
    own = next(pace for pace in paces if pace.uuid == gpu.state.uuid)
    median_clock = median(pace.clock for pace in paces)
    heavier = own.capped - median(pace.capped for pace in paces) > _HEAVIER
    if own.clock >= share * median_clock or (heavier and own.clock >= _EXCUSED * median_clock):
        return PASSED
    active = {name for name, on in (gpu.now.clock_event_active or {}).items() if on}
    if "hw_thermal" in active:
        active.discard("sw_thermal")  # hardware slows down because of heat if the driver's slowdown was not enough
    reasons = [name for name in _WORDS if name in active]
    words = ", ".join(_WORDS[name] for name in reasons) or "no reason is reported"
    reason = f"Its clock is {own.clock / 1e6:.0f} MHz, that of its busy neighbours {median_clock / 1e6:.0f}: {words}."
    action = Action.RESET if _RESET.issuperset(reasons) else Action.INSPECT
    return warn(reason, action, sm_clock_hertz=round(own.clock), median_hertz=round(median_clock))


def _pace(gpu: GpuCase, load: float) -> _Pace | None:
    """Return the median clock and the share of time at the power limit over WINDOW; None if the GPU was not busy."""
    if gpu.now.utilization_ratio is None or is_utilization_latched(gpu.now):
        return None
    busy = gpu.mean(BUSY)
    if busy is None or busy < load:
        return None
    clock = gpu.median(CLOCKS, domain="sm")
    return None if clock is None else _Pace(gpu.state.uuid, clock, gpu.mean(REASONS, reason="sw_power_cap") or 0.0)


_HEAT_OR_POWER = same("gpu_thermal_margin_low", "gpu_memory_temperature_high", "gpu_power_brake")

CHECKS = (
    Check(
        name="gpu_hw_slowdown",
        levels=(FAIL, WARN),
        help="The GPU's clocks are reduced most of the time, by the hardware or because of heat.",
        steps="""\
1. `nvidia-smi -q -d PERFORMANCE` shows the reason.
   Thermal: check the cooling; power brake: the power supply; neither: the board.
2. Check power supplies and cables (the BMC's log), fans, cold plates and inlet temperature.
3. If nothing is found, drain and reset the GPU. If it recurs, replace the board.
""",
        gpu=slowdown,
        clear_after=2 * MINUTE,
        windows=(REASONS,),
        limits=(SLOWED,),
        inhibited_by=_HEAT_OR_POWER,
    ),
    Check(
        name="gpu_clock_straggler",
        levels=(WARN,),
        help="The GPU's clock is lower than that of its neighbours with the same work, which slows the whole job.",
        steps="""\
1. `nvidia-smi -q -d CLOCK,PERFORMANCE` on it and on a neighbour: compare application clocks, limits and reasons.
2. `nvidia-smi -rgc` and `-rac` reset clocks that were set; then drain and reset the GPU.
3. If it recurs, check cooling and power of this slot, then the board.
""",
        gpu=straggler,
        windows=(REASONS, CLOCKS, BUSY),
        limits=(CLOCK_SHARE, BUSY_SHARE),
        inhibited_by=_HEAT_OR_POWER | same("gpu_power_cap_low", "gpu_power_implausible", "gpu_hw_slowdown"),
    ),
)
