"""Rows for GPU memory (ECC errors, remapped rows, retired pages), heat and power."""

from __future__ import annotations

from collections.abc import Iterator

from gpumon_sim.sim_fault import growing, hot_memory, remaps, retires, whole

from benchmarks.truth.fault import FaultRow, once
from gpumon.health.check_row import MINUTE
from gpumon.health.verdict import Action


def rows() -> Iterator[FaultRow]:
    yield from _memory()
    yield from _heat()


def _memory() -> Iterator[FaultRow]:
    yield FaultRow(
        name="an uncorrectable error in memory",
        check="gpu_ecc_uncorrectable",
        action=Action.RESET,
        steps=once(ecc={"uncorrected_dram": 1, "lifetime_uncorrected_dram": 1}),
        on=whole,
    )
    yield FaultRow(
        name="an uncorrectable error in SRAM",
        check="gpu_ecc_uncorrectable",
        action=Action.RESET,
        steps=once(ecc={"uncorrected_sram": 1, "lifetime_uncorrected_sram": 1}),
        on=whole,
    )
    yield FaultRow(
        name="uncorrectable errors in SRAM above the board's threshold",
        check="gpu_ecc_sram_threshold",
        action=Action.REPLACE,
        steps=once(ecc={"threshold_exceeded": 1}),
        on=lambda profile: profile.board.architecture >= 7 and not profile.mig,
        within=7 * MINUTE,
    )
    yield FaultRow(
        name="corrected errors in a storm: 500 a second",
        check="gpu_ecc_corrected_storm",
        action=Action.RESET,
        steps=once(ecc={"corrected_dram": growing(500)}),
        on=whole,
        within=10 * MINUTE,
    )
    yield FaultRow(
        name="30 million corrected errors in memory",
        check="gpu_ecc_corrected_high",
        action=Action.RESET,
        steps=once(ecc={"corrected_dram": 3e7}),
        on=whole,
        within=20 * MINUTE,
    )
    yield FaultRow(
        name="a row that waits to be remapped",
        check="gpu_row_remap_pending",
        action=Action.RESET,
        steps=once(remap={"uncorrectable": 1, "pending": 1}),
        on=remaps,
        within=20 * MINUTE,
    )
    yield FaultRow(
        name="a row that could not be remapped",
        check="gpu_row_remap_failed",
        action=Action.REPLACE,
        steps=once(remap={"failed": 1}),
        on=remaps,
        within=6 * MINUTE,
    )
    yield FaultRow(
        name="512 rows remapped",
        check="gpu_row_remap_many",
        action=Action.REPLACE,
        steps=once(remap={"uncorrectable": 512}),
        on=remaps,
        within=6 * MINUTE,
    )
    yield FaultRow(
        name="a bank without spare rows",
        check="gpu_row_remap_banks",
        action=Action.INSPECT,
        steps=once(remap={"banks_none": 1}),
        on=remaps,
        within=6 * MINUTE,
    )
    yield FaultRow(
        name="20 pages retired",
        check="gpu_retired_pages",
        action=Action.INSPECT,
        steps=once(set={"retired_uncorrected": 20}),
        on=retires,
        within=6 * MINUTE,
    )
    yield FaultRow(
        name="a page that waits to be retired",
        check="gpu_page_retirement_pending",
        action=Action.REBOOT,
        steps=once(set={"retired_pending": 1}),
        on=retires,
        within=25 * MINUTE,
    )
    yield FaultRow(
        name="63 pages retired",
        check="gpu_retired_pages",
        action=Action.REPLACE,
        steps=once(set={"retired_uncorrected": 63}),
        on=retires,
        within=6 * MINUTE,
    )


def _heat() -> Iterator[FaultRow]:
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
