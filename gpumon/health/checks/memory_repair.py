"""CHECKS: memory repairs that wait for a reset or a reboot, and the recovery action that the driver requests."""

from __future__ import annotations

from gpumon.health.check_row import MINUTE, Check, covers_same_time, flag_check, same
from gpumon.health.checks.memory_ecc import FAULTS, SPENT, XIDS, of_memory
from gpumon.health.checks.xid import MEMORY, codes
from gpumon.health.device_case import GpuCase
from gpumon.health.verdict import PASSED, WARN, Action, Finding, Verdict, warn
from gpumon.health.xid_texts import recovery_of, request_finding

_PARTS = {"channel": "a memory channel", "tpc": "a TPC (processors)", "bank": "a memory bank"}


def recovery_action(gpu: GpuCase) -> Finding | None:
    number = gpu.now.recovery_action
    if number is None:
        return None
    return request_finding(number) if number and not recovery_of(number).of_node else PASSED


def repair_pending(gpu: GpuCase) -> Finding | None:
    """Return a warning if the driver will repair a memory row or another part at the next reset, else PASSED."""
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


CHECKS = (
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
