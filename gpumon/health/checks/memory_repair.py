"""CHECKS: memory that wears out, repairs that wait for a reset or a reboot, and requested recovery actions."""

from __future__ import annotations

from gpumon.health.check_row import MINUTE, Check, covers_same_time, flag_check, same
from gpumon.health.checks.memory_ecc import FAULTS, SPENT, XIDS, of_memory
from gpumon.health.checks.xid import MEMORY, codes
from gpumon.health.facts import GpuCase
from gpumon.health.policy import COUNT, Limit, Range
from gpumon.health.verdict import FAIL, PASSED, WARN, Action, Finding, Verdict, fail, warn
from gpumon.health.xid_texts import recovery_of, request_finding

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
    """Return a warning if spare rows or banks are used up. On a new board all banks are `max`: 2560 of an H100."""
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
    """Return a finding on retired pages (before Ampere), for which corrected and uncorrected errors share one list."""
    limit, critical = gpu.facts.any_threshold(PAGES, CRITICAL_PAGES)
    if gpu.now.retired_pages is None:
        return None
    pages = sum(gpu.now.retired_pages.values())
    reason = f"{pages:.0f} of at most 64 memory pages are retired."
    if critical is not None and pages > critical:
        return fail(reason, Action.REPLACE, retired_pages=pages)
    return warn(reason, Action.INSPECT, retired_pages=pages) if limit is not None and pages > limit else PASSED


_PARTS = {"channel": "a memory channel", "tpc": "a TPC (processors)", "bank": "a memory bank"}


def recovery_action(gpu: GpuCase) -> Finding | None:
    number = gpu.now.recovery_action
    if number is None:
        return None
    return request_finding(number) if number and not recovery_of(number).of_node else PASSED


def repair_pending(gpu: GpuCase) -> Finding | None:
    row, others = gpu.now.row_remap_pending, gpu.now.repair_pending
    if row is None and others is None:
        return None
    if row:
        reason = "A bad memory row will be replaced by a spare at the next GPU reset; until then it is not used."
        return warn(reason, Action.RESET)
    parts = [_PARTS.get(part, part) for part, pending in (others or {}).items() if pending]
    return warn(f"The next GPU reset repairs {' and '.join(parts)}.", Action.RESET) if parts else PASSED


def explains_page(_: Verdict, cause: Verdict, together: bool) -> bool:  # noqa: FBT001 - see Check.inhibited_if
    """Return whether an overlapping cause is an uncorrectable error or a memory Xid. For `Check.inhibited_if`."""
    return together and (cause.check == "gpu_ecc_uncorrectable" or bool(codes(cause) & MEMORY))


WEAR_CHECKS = (
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

REPAIR_CHECKS = (
    Check(
        name="gpu_recovery_action",
        help="The driver requests a GPU reset or a reboot of the node.",
        steps="""\
1. `nvidia-smi -q | grep -A1 Recovery` shows the action that the driver requests.
2. Drain the node and perform the action of the verdict.
3. If the driver requests an end of peer-to-peer traffic: end the jobs that use more than one GPU.
4. If the request stays: take the next step (reset, reboot), then inspect the hardware.
""",
        gpu=recovery_action,
        after=MINUTE,
        inhibited_by=FAULTS | SPENT | XIDS | same("gpu_ecc_uncorrectable") | {"nvswitch_error": "node"},
        inhibited_if=covers_same_time,
    ),
    Check(
        name="gpu_row_remap_pending",
        levels=(WARN,),
        help="A bad memory row, or another part of the GPU, waits for a reset to be repaired.",
        steps="""\
1. Drain the node and reset the GPU. Jobs are not affected: this can wait until the GPU is idle.
2. After the reset `gpumon_gpu_row_remap_failed` must be 0: the row was replaced.
3. If `nvidia-smi -q | grep -A2 Repair` still shows a pending repair, reboot the node.
""",
        gpu=repair_pending,
        after=15 * MINUTE,
        inhibited_by=SPENT | XIDS | same("gpu_ecc_uncorrectable", "gpu_ecc_corrected_storm", "gpu_recovery_action"),
        inhibited_if=of_memory,
    ),
    Check(
        name="gpu_page_retirement_pending",
        levels=(WARN,),
        help="A bad memory page of a GPU before Ampere waits for the driver to be loaded again.",
        steps="""\
1. Drain the node and reboot it. This can wait until its jobs have ended.
2. Then `nvidia-smi -q -d PAGE_RETIREMENT` must show `Pending : No`.
""",
        gpu=flag_check(
            lambda now: now.retired_pages_pending,
            warn("A bad memory page will be retired when the driver is loaded the next time.", Action.REBOOT),
        ),
        after=15 * MINUTE,
        inhibited_by=XIDS | same("gpu_ecc_uncorrectable"),
        inhibited_if=explains_page,
    ),
)
