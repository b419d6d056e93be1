"""One fault of a GPU or its memory gives one primary verdict: the one whose action is the right one."""

from __future__ import annotations

from collections.abc import Callable

from each_case import each_case
from judging import Ward

from gpumon.health.verdict import Action
from gpumon.model.error_event import SXID

MINUTES = 60.0
LINK_ERROR = "NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)"
RESET_IT = "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"


def primary(ward: Ward) -> list[tuple[str, Action]]:
    return [(each.check, each.action) for each in ward.report.health.primary]


def dram_error(ward: Ward) -> None:
    """Report an uncorrectable DRAM error as a Hopper does: Xids at once, counters and flags at the next reading."""
    for code in (48, 171, 63, 45):
        ward.event(0, code)
    ward.event(0, 154, text=RESET_IT)
    ward.go_on(15)
    ward.ecc(0, uncorrected_dram=1)
    ward.gpu(0, row_remap_pending=1.0, recovery_action=1.0, rows_remapped_total={"uncorrectable": 1.0})


def sram_error(ward: Ward) -> None:
    ward.event(0, 48)
    ward.event(0, 172)
    ward.go_on(15)
    ward.ecc(0, uncorrected_sram=1)
    ward.gpu(0, recovery_action=1.0)


def report_contained_error(ward: Ward) -> None:
    """Report a contained error: the Xid names the application only, the counters show a bad row."""
    for code in (94, 63):
        ward.event(0, code)
    ward.go_on(15)
    ward.ecc(0, uncorrected_dram=1)
    ward.gpu(0, row_remap_pending=1.0)


def contained_with_mig(ward: Ward) -> None:
    """Report a contained error with MIG, where the driver reports no counters."""
    ward.gpu(0, state={"ecc_volatile": None}, ecc_errors_total=None)
    ward.event(0, 94)
    ward.go_on(15)
    ward.gpu(0, row_remap_pending=1.0)


def no_spare(ward: Ward) -> None:
    """Report a row that could not be remapped."""
    for code in (48, 64):
        ward.event(0, code)
    ward.go_on(15)
    ward.ecc(0, uncorrected_dram=1)
    ward.gpu(0, row_remap_failed=1.0, row_remap_banks={"none": 1.0}, recovery_action=1.0)


def threshold(ward: Ward) -> None:
    """Report the SRAM threshold flag, which is read every five minutes."""
    ward.event(0, 48)
    ward.ecc(0, uncorrected_sram=4)
    ward.go_on(6 * MINUTES, every=30)
    ward.gpu(0, ecc_sram_threshold_exceeded=1.0)


def old_board(ward: Ward) -> None:
    """Report a T4's fault: retired pages instead of remapped rows."""
    ward.event(0, 48)
    ward.event(0, 63)
    ward.go_on(15)
    ward.ecc(0, uncorrected_dram=1)
    ward.gpu(0, retired_pages={"double_bit": 1.0}, retired_pages_pending=1.0, row_remap_pending=None)


def reboot_advised(ward: Ward) -> None:
    """Report an Xid that asks for a reset and driver advice that asks for a reboot: neither covers the other."""
    ward.event(0, 95)
    ward.go_on(15)
    ward.gpu(0, recovery_action=2.0)


def lost(ward: Ward) -> None:
    ward.event(0, 79)
    ward.event(0, 154, text=RESET_IT)
    ward.go_on(10)
    ward.fault(0, "lost")
    ward.gpu(0, recovery_action=None, row_remap_pending=None, row_remap_failed=None)


def lost_while_a_link_fails(ward: Ward) -> None:
    """Report a lost GPU and an error of the link's peer."""
    ward.event(0, 79)
    ward.event(0, 74, text=LINK_ERROR)
    ward.event(1, 74, text=LINK_ERROR)
    ward.go_on(10)
    ward.fault(0, "lost")


def firmware(ward: Ward) -> None:
    """Report a firmware error, after which the agent quarantines the GPU at once."""
    ward.event(0, 119)
    ward.event(0, 120)
    ward.fault(0, "stuck")


def reset_required(ward: Ward) -> None:
    ward.event(0, 95)
    ward.fault(0, "reset_required")
    ward.gpu(0, recovery_action=1.0)


def switch(ward: Ward) -> None:
    """Report a switch error, which each GPU reports for its links."""
    ward.event(0, 12020, kind=SXID, bus_id="0000:05:00.0", uuid=None, fatal=True)
    for index in (0, 1):
        ward.event(index, 74, text=LINK_ERROR)


@each_case(
    ("fault", "verdicts"),
    [
        (dram_error, [("gpu_xid_critical", Action.RESET)]),
        (sram_error, [("gpu_xid_critical", Action.RESET)]),
        (report_contained_error, [("gpu_ecc_uncorrectable", Action.RESET)]),
        (contained_with_mig, [("gpu_row_remap_pending", Action.RESET)]),
        (no_spare, [("gpu_row_remap_failed", Action.REPLACE)]),
        (threshold, [("gpu_ecc_sram_threshold", Action.REPLACE)]),
        (old_board, [("gpu_xid_critical", Action.RESET)]),
        (reboot_advised, [("gpu_xid_critical", Action.RESET), ("gpu_recovery_action", Action.REBOOT)]),
        (lost, [("gpu_lost", Action.REBOOT)]),
        (lost_while_a_link_fails, [("gpu_lost", Action.REBOOT)]),
        (firmware, [("gpu_stuck", Action.RESET)]),
        (reset_required, [("gpu_reset_required", Action.RESET)]),
        (switch, [("nvswitch_error", Action.REBOOT)]),
    ],
)
def test_one_fault(fault: Callable[[Ward], None], verdicts: list[tuple[str, Action]]) -> None:
    ward = Ward(gpus=2)
    ward.go_on(60, every=15)
    fault(ward)
    ward.go_on(17 * MINUTES, every=30)
    assert primary(ward) == verdicts
    assert len(ward.verdicts) > 1


def test_a_new_fault_is_not_inhibited_by_an_old_one() -> None:
    """A new fault of a board that waits for its replacement is a second primary verdict."""
    ward = Ward(gpus=1)
    ward.gpu(0, row_remap_failed=1.0)
    ward.go_on(3600, every=60)
    ward.event(0, 119)
    ward.go_on(30)
    assert {check for check, _ in primary(ward)} == {"gpu_row_remap_failed", "gpu_xid_critical"}


def test_an_old_xid_is_not_inhibited_by_a_lost_gpu() -> None:
    """An Xid from before the loss stays primary: the memory has to be inspected too."""
    ward = Ward(gpus=1)
    ward.event(0, 48)
    ward.go_on(3600, every=60)
    ward.fault(0, "lost")
    ward.go_on(60)
    assert {check for check, _ in primary(ward)} == {"gpu_lost", "gpu_xid_critical"}


def test_the_same_fault_on_two_gpus_is_two_faults() -> None:
    ward = Ward(gpus=2)
    ward.event(0, 95)
    ward.go_on(60)
    ward.ecc(1, uncorrected_dram=1)
    ward.go_on(30)
    assert {check for check, _ in primary(ward)} == {"gpu_xid_critical", "gpu_ecc_uncorrectable"}


def test_a_storm_of_corrected_errors_is_one_fault() -> None:
    """The driver's warning of the rate and the check of the total are inhibited."""
    ward = Ward(gpus=1)
    ward.event(0, 92)
    for _ in range(80):
        ward.ecc(0, corrected_dram=1_500_000)
        ward.go_on(15)
    assert primary(ward) == [("gpu_ecc_corrected_storm", Action.RESET)]
    assert ward.active_checks() == ["gpu_ecc_corrected_high", "gpu_ecc_corrected_storm", "gpu_xid"]


def test_a_storm_of_lines_is_inhibited_by_their_xid() -> None:
    ward = Ward(gpus=1)
    ward.event(0, 95)
    for step in range(40):
        ward.gpu(0, xid_errors_total={"95": step * 50.0})
        ward.go_on(10)
    assert primary(ward) == [("gpu_xid_critical", Action.RESET)]
    assert ward.active_checks() == ["gpu_xid_critical", "gpu_xid_storm"]
