"""Rows for heat and power."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.truth.fault import FaultRow, growing, once
from benchmarks.truth.faults.where import hot_memory, whole
from gpumon.health.check_row import MINUTE
from gpumon.health.verdict import Action


def rows() -> Iterator[FaultRow]:
    yield FaultRow(
        name="GPU temperature at its maximum",
        check="gpu_thermal_margin_low",
        steps=once(set={"temperature": 94}),
    )
    yield FaultRow(
        name="GPU memory is too hot",
        check="gpu_memory_temperature_high",
        steps=once(set={"memory_temperature": 110}),
        on=hot_memory,
    )
    yield FaultRow(
        name="clocks reduced by a hardware slowdown",
        check="gpu_hw_slowdown",
        steps=once(set={"clock_events": 0x8 | 0x40, "hw_thermal_seconds": growing(1.0)}),
        within=12 * MINUTE,
    )
    yield FaultRow(
        name="clocks reduced by a power brake",
        check="gpu_power_brake",
        steps=once(set={"clock_events": 0x8 | 0x80, "hw_power_brake_seconds": growing(1.0)}),
        within=6 * MINUTE,
    )
    yield FaultRow(
        name="power limit set to half",
        check="gpu_power_cap_low",
        action=Action.NONE,
        steps=once(set={"power_limit": 200, "power_limit_requested": 200}),
        on=lambda profile: profile.board.power_limit > 300,
        within=40 * MINUTE,
    )
    yield FaultRow(
        name="draws 2 W under load",
        check="gpu_power_implausible",
        steps=once(set={"power": 2}),
        on=whole,
    )
    yield FaultRow(
        name="clock at half of the other GPUs' clocks",
        check="gpu_clock_straggler",
        steps=once(set={"sm_clock": 700, "graphics_clock": 700}),
        action=Action.RESET,
        on=lambda profile: (
            len(profile.bus_ids) > 2 and whole(profile)
        ),  # with two GPUs the slow one cannot be identified
        within=15 * MINUTE,
    )
