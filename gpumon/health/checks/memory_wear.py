"""CHECKS: wear of GPU memory, which uses up the spare rows and the entries for retired pages of a board."""

from __future__ import annotations

from gpumon.health.check_row import Check, flag_check
from gpumon.health.device_case import GpuCase
from gpumon.health.policy import COUNT, Limit, Range
from gpumon.health.verdict import FAIL, OFF, PASSED, WARN, Action, Finding, fail, warn

_LISTED = Range(0, 63)
"""Valid thresholds for the number of retired pages: a GPU can retire at most 64 pages."""
ROWS = Limit(
    "rows_remapped", 512, "Minimum number of rows replaced for uncorrectable errors that raises a verdict.", COUNT
)
PAGES = Limit(
    "max_retired_pages",
    10,
    "Maximum number of retired pages of a GPU before Ampere; more are a warning.",
    _LISTED,
    "max_retired_pages_critical",
)
CRITICAL_PAGES = Limit(
    "max_retired_pages_critical",
    60,
    "Maximum number of retired pages, of 64, of a GPU before Ampere; more are a failure.",
    _LISTED,
)

_PROOF = "the vendor accepts `nvidia-smi -q -d ROW_REMAPPER,ECC,PAGE_RETIREMENT` as evidence"


def rows_remapped(gpu: GpuCase) -> Finding | None:
    rows = (gpu.now.rows_remapped_total or {}).get("uncorrectable")
    limit = gpu.facts.threshold(ROWS)
    if rows is None:
        return None
    if rows < limit:
        return PASSED
    reason = f"{rows:.0f} memory rows were replaced for uncorrectable errors: spares are running out."
    return warn(reason, Action.REPLACE, rows_remapped=rows)


def banks_without_spares(gpu: GpuCase) -> Finding | None:
    """Return a warning if spare rows or banks are used up somewhere, else PASSED; None if the driver reports no banks.

    On a new board every bank has its maximum number of spare rows: an H100 reports 2560 banks as `max`.
    """
    banks, groups = (gpu.now.row_remap_banks or {}).get("none"), gpu.now.bank_groups_without_spares
    if groups:
        reason = f"In {groups:.0f} groups of memory banks no spare bank is left: the next bad bank cannot be replaced."
        return warn(reason, Action.INSPECT, bank_groups=groups)
    if banks is None:
        return None
    if not banks:
        return PASSED
    named = "1 memory bank has" if banks == 1 else f"{banks:.0f} memory banks have"
    return warn(f"{named} no spare row left: the next bad row there cannot be replaced.", Action.INSPECT, banks=banks)


def retired_pages(gpu: GpuCase) -> Finding | None:
    """Return a warning or a failure if many memory pages are retired, on GPUs before Ampere.

    Pages that were retired for corrected errors and for uncorrected errors share one list.
    """
    limit, critical = gpu.facts.limit(PAGES), gpu.facts.limit(CRITICAL_PAGES)
    if limit is None and critical is None:
        return OFF
    if gpu.now.retired_pages is None:
        return None
    pages = sum(gpu.now.retired_pages.values())
    reason = f"{pages:.0f} of at most 64 memory pages are retired."
    if critical is not None and pages > critical:
        return fail(reason, Action.REPLACE, retired_pages=pages)
    return warn(reason, Action.INSPECT, retired_pages=pages) if limit is not None and pages > limit else PASSED


CHECKS = (
    Check(
        name="gpu_row_remap_failed",
        help="A bad row of the GPU's memory could not be replaced.",
        steps=f"""\
1. Drain the node: the GPU's memory can no longer be repaired.
2. Replace the board; {_PROOF}.
""",
        gpu=flag_check(
            lambda now: now.row_remap_failed,
            fail("A bad memory row could not be replaced: no spare is left.", Action.REPLACE),
        ),
    ),
    Check(
        name="gpu_memory_unrepairable",
        help="Memory of the GPU cannot be repaired.",
        steps=f"""\
1. Drain the node: the next error there hits a job.
2. Replace the board; {_PROOF}.
""",
        gpu=flag_check(
            lambda now: now.memory_unrepairable,
            fail("The driver reports memory that cannot be repaired.", Action.REPLACE),
        ),
        inhibited_by={"gpu_row_remap_failed": "same"},
    ),
    Check(
        name="gpu_ecc_sram_threshold",
        help="The GPU's SRAM had more uncorrectable errors than its threshold.",
        steps=f"""\
1. Drain the node: caches and registers of the GPU give wrong values, and cannot be repaired.
2. Replace the board; {_PROOF}.
""",
        gpu=flag_check(
            lambda now: now.ecc_sram_threshold_exceeded,  # only root can read it
            fail("The SRAM had more uncorrectable errors than the driver's threshold.", Action.REPLACE),
        ),
    ),
    Check(
        name="gpu_row_remap_many",
        levels=(WARN,),
        help="So many memory rows were replaced that spares are running out.",
        steps=f"""\
1. The GPU still works. Plan its replacement before a row cannot be replaced; {_PROOF}.
""",
        gpu=rows_remapped,
        inhibited_by={"gpu_row_remap_failed": "same"},
        limits=(ROWS,),
    ),
    Check(
        name="gpu_row_remap_banks",
        levels=(WARN,),
        help="A memory bank has no spare row left, or a group of banks no spare bank.",
        steps="""\
1. The GPU still works. `nvidia-smi -q -d ROW_REMAPPER` shows the banks by the spares they have left.
2. Run the vendor's diagnostics in the next maintenance. If more banks are affected each time, plan the replacement.
""",
        gpu=banks_without_spares,
        inhibited_by={"gpu_row_remap_failed": "same", "gpu_row_remap_many": "same"},
    ),
    Check(
        name="gpu_retired_pages",
        levels=(WARN, FAIL),
        help="Many memory pages of a GPU before Ampere are retired; the maximum is 64.",
        steps=f"""\
1. The GPU still works. A warning: run the vendor's diagnostics in the next maintenance.
2. Critical: drain the node and replace the board; {_PROOF}.
""",
        gpu=retired_pages,
        limits=(PAGES, CRITICAL_PAGES),
    ),
)
