"""Rows for GPU memory: ECC errors, remapped rows, retired pages."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.truth.fault import FaultRow, growing, once
from benchmarks.truth.faults.where import remaps, retires, whole
from gpumon.health.check_row import MINUTE
from gpumon.health.verdict import Action


def rows() -> Iterator[FaultRow]:
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
