"""CHECKS: temperature of the GPU's core and memory."""

from __future__ import annotations

from gpumon.health.check_row import MINUTE, Check, Paging
from gpumon.health.facts import GpuCase
from gpumon.health.policy import Limit, Range
from gpumon.health.verdict import FAIL, OFF, OK, PASSED, WARN, Action, Finding, fail, warn

_DEGREES, _MARGINS = Range(30, 150), Range(-50, 50)
"""Valid thresholds in degrees Celsius: for temperatures, and for margins (degrees left until the GPU slows down)."""
MARGIN = Limit("min_margin_celsius", 1.0, "Minimum margin to slowdown, in degrees.", _MARGINS)
SLOWDOWN = Limit(
    "slowdown_margin_celsius",
    None,
    "Margin below which the hardware slows a GPU down; if unset, as the driver reports.",
    _MARGINS,
)
CORE = Limit(
    "max_core_celsius",
    85.0,
    "Maximum core temperature if the driver reports no margin; if set, also beside the margin.",
    _DEGREES,
)
COOL = 60.0
"""Core temperature below which a margin of 0 or less is wrong: the hottest spot is at most some 20 degrees warmer."""
MEMORY = Limit("max_memory_celsius", 95.0, "Maximum memory temperature if the driver reports no maximum.", _DEGREES)
COOLED = 10 * MINUTE
"""Seconds after which a GPU counts as cooled down. Under a load that comes and goes it is hot again within minutes."""
_COOLING = """\
1. One GPU: its heat sink, cold plate or fan. All GPUs of a node: inlet air, fans, coolant flow, a neighbour's exhaust.
2. `nvidia-smi -q -d TEMPERATURE,PERFORMANCE`, and the BMC's sensors at the same time.
3. If it is cool and no thermal reason is active, the margin itself may be wrong, as on some H100: update the driver.
4. Until it is cooler, reduce the load or the power limit (`nvidia-smi -pl`): a hot GPU slows its job.
"""


def core_hot(gpu: GpuCase) -> Finding | None:
    """Return the finding of `margin_low`, or one on the core temperature if only its configured maximum is exceeded."""
    finding, limit = margin_low(gpu), gpu.facts.policy.thresholds.get(CORE.name)
    passed = finding is not None and finding.level is OK
    return _above_maximum(gpu, limit) if passed and limit is not None else finding


def margin_low(gpu: GpuCase) -> Finding | None:
    """Return a finding on the thermal margin, or on the core temperature if the driver reports no margin.

    Some boards report a margin of 0 or less while they are cool: it is then ignored, and on a warmer board only a
    warning unless another reading confirms the heat.
    """
    margin, limit = gpu.now.thermal_margin_celsius, gpu.facts.limit(MARGIN)
    if margin is None:
        return _without_margin(gpu)
    if (margin > 0) if limit is None else (margin >= limit):
        return PASSED
    slowdown = gpu.facts.limit(SLOWDOWN)
    offset = gpu.now.thermal_margin_slowdown_celsius if slowdown is None else slowdown
    below = offset is not None and margin < offset
    if _is_reduced(gpu, "hw_thermal") or (below and _is_confirmed_hot(gpu)):
        reason = f"{_distance_to_limit(gpu, margin)}: the hardware slows it down."
        return fail(reason, Action.INSPECT, thermal_margin_celsius=margin)
    if limit is None:
        return OFF
    if margin <= 0 and (gpu.now.temperature_celsius or COOL) < COOL and not _is_confirmed_hot(gpu):
        return PASSED
    return warn(_small_margin(gpu, margin), Action.INSPECT, thermal_margin_celsius=margin)


def _degrees(count: float) -> str:
    return f"{count:.0f} degree{'' if round(count) == 1 else 's'}"


def _distance_to_limit(gpu: GpuCase, margin: float) -> str:
    core = gpu.now.temperature_celsius
    side = f"{_degrees(margin)} below" if margin > 0 else f"{_degrees(-margin)} above"
    return f"It is {side} its limit{'' if core is None else f' (core: {core:.0f} degrees)'}"


def _small_margin(gpu: GpuCase, margin: float) -> str:
    if margin >= 0:
        return f"It has {_degrees(margin)} left until it slows down for heat."
    if _is_confirmed_hot(gpu):
        return f"{_distance_to_limit(gpu, margin)}: it is being slowed down."
    unconfirmed = "neither a clocks event reason nor its core temperature confirms that"
    return f"{_distance_to_limit(gpu, margin)} by its thermal margin; {unconfirmed}."


def _is_confirmed_hot(gpu: GpuCase) -> bool:
    core, slowdown = gpu.now.temperature_celsius, gpu.now.temperature_slowdown_celsius
    is_hot = core is not None and slowdown is not None and core >= slowdown
    return is_hot or _is_reduced(gpu, "sw_thermal") or _is_reduced(gpu, "hw_thermal")


def _is_reduced(gpu: GpuCase, reason: str) -> bool:
    return bool((gpu.now.clock_event_active or {}).get(reason))


def _without_margin(gpu: GpuCase) -> Finding | None:
    core, slowdown = gpu.now.temperature_celsius, gpu.now.temperature_slowdown_celsius
    if core is None:
        return None
    if slowdown is not None and core >= slowdown:
        reason = f"Its core has {core:.0f} degrees; at {slowdown:.0f} on the hardware slows it down."
        return fail(reason, Action.INSPECT, temperature_celsius=core, temperature_slowdown_celsius=slowdown)
    return _above_maximum(gpu, gpu.facts.limit(CORE))


def _above_maximum(gpu: GpuCase, limit: float | None) -> Finding:
    core = gpu.now.temperature_celsius
    if limit is None:
        return OFF
    if core is None or core <= limit:
        return PASSED
    return warn(
        f"Its core has {core:.0f} degrees; the maximum is {limit:.0f}.", Action.INSPECT, temperature_celsius=core
    )


def memory_hot(gpu: GpuCase) -> Finding | None:
    now, reported = gpu.now.memory_temperature_celsius, gpu.now.memory_temperature_max_celsius
    limit = gpu.facts.limit(MEMORY) if reported is None else reported
    if now is None:
        return None
    if limit is None:
        return OFF
    if now <= limit:
        return PASSED
    reason = f"Its memory has {now:.0f} degrees; the maximum is {limit:.0f}."
    return warn(reason, Action.INSPECT, memory_temperature_celsius=now, memory_temperature_max_celsius=limit)


CHECKS = (
    Check(
        name="gpu_thermal_margin_low",
        pages=Paging.NIGHT,
        levels=(FAIL, WARN),
        help="The GPU is near or above the temperature at which its clocks are reduced.",
        steps=_COOLING,
        gpu=core_hot,
        after=2 * MINUTE,
        clear_after=COOLED,
        limits=(MARGIN, SLOWDOWN, CORE),
    ),
    Check(
        name="gpu_memory_temperature_high",
        levels=(WARN,),
        help="The GPU's memory is hotter than its maximum.",
        steps=_COOLING,
        gpu=memory_hot,
        after=5 * MINUTE,
        clear_after=COOLED,
        limits=(MEMORY,),
        inhibited_by={"gpu_thermal_margin_low": "same"},
    ),
)
