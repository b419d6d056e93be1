"""What holds a GPU: processes that cannot end, memory of nobody, work that does not go on, settings."""

from __future__ import annotations

from typing import Any

import pytest
from each_case import each_case
from judging import Ward

from gpumon.health.policy import Policy
from gpumon.health.verdict import Action, Level
from gpumon.model.nvlink import C2cLink
from gpumon.model.snapshot import StuckProcess

MINUTE = 60.0
GIB = float(1 << 30)
HELD: dict[str, Any] = {"memory_used_bytes": 6 * GIB, "processes": 0.0, "utilization_ratio": 0.0}


def stuck(ward: Ward, *gpus: str, minutes: float = 0.0) -> StuckProcess:
    return StuckProcess(since=ward.at - minutes * MINUTE, gpus=gpus)


def test_a_process_that_does_not_come_back_is_a_fault_after_five_minutes() -> None:
    """Of the node, which has to be rebooted; the GPUs are named, and no process is."""
    ward = Ward()
    ward.processes(stuck=(stuck(ward, "3"), stuck(ward, "2", "3")))
    assert not ward.go_on(295).verdicts
    verdict = ward.go_on(10).verdict("gpu_process_stuck")
    assert verdict is not None
    assert (verdict.device, verdict.level, verdict.action) == ("", Level.FAIL, Action.REBOOT)
    assert verdict.reason == "2 processes that hold GPU 2, 3 have not returned from the kernel for 5 minutes."
    ward.processes(stuck=None)
    assert ward.go_on(30 * MINUTE, every=30).verdict("gpu_process_stuck")
    ward.processes()
    assert not ward.go_on(70).verdicts


def test_processes_that_come_back_are_none() -> None:
    """Each for four minutes, one after the other."""
    ward = Ward()
    for _ in range(4):
        ward.processes(stuck=(stuck(ward, "3"),))
        ward.go_on(4 * MINUTE)
    assert not ward.transitions


def test_a_process_whose_gpus_cannot_be_seen_counts_as_well() -> None:
    """It was killed: its files are closed, and the driver is still in its stack."""
    ward = Ward()
    ward.processes(stuck=(stuck(ward, minutes=7),))
    verdict = ward.go_on().verdict("gpu_process_stuck")
    assert verdict is not None
    assert verdict.reason == "A process that holds NVIDIA's devices has not returned from the kernel for 7 minutes."


def test_processes_of_a_gpu_that_hangs_follow_from_it() -> None:
    """So does the memory that they leave behind."""
    ward = Ward()
    ward.fault(3, "stuck")
    ward.processes(stuck=(stuck(ward, "3"),))
    ward.gpu(2, **HELD)
    ward.go_on(6 * MINUTE)
    assert ward.active_checks() == ["gpu_memory_orphaned", "gpu_process_stuck", "gpu_stuck"]
    assert [one.check for one in ward.report.health.primary] == ["gpu_stuck"]


def test_memory_of_nobody_is_told_after_five_minutes() -> None:
    """And over when it is free, or when somebody is found to have it."""
    ward = Ward()
    ward.gpu(3, **HELD)
    assert not ward.go_on(295).verdicts
    verdict = ward.go_on(15).verdict("gpu_memory_orphaned", 3)
    assert verdict is not None
    assert (verdict.level, verdict.action) == (Level.WARN, Action.RESET)
    assert verdict.reason == "6 GiB of its memory are in use without a process."
    ward.gpu(3, processes=None)
    assert ward.go_on(20 * MINUTE, every=30).verdict("gpu_memory_orphaned", 3)
    ward.gpu(3, processes=1.0)
    assert not ward.go_on(70).verdicts


@each_case(
    "readings",
    [
        {"memory_used_bytes": 3.9 * GIB},
        {"processes": 2.0},
        {"mig_mode": 1.0},
        {"name": "NVIDIA GB200"},
        {"name": "NVIDIA GH200 480GB"},
        {"state": {"c2c_links": {"0": C2cLink(up=1.0)}}},
    ],
    ids=["little", "somebody's", "mig", "grace", "grace hopper", "chip to chip"],
)
def test_memory_that_is_nobodys_business(readings: dict[str, Any]) -> None:
    """Little of it, or in the hands of somebody whom NVML does not name."""
    ward = Ward()
    ward.gpu(3, **HELD | readings)
    assert not ward.go_on(20 * MINUTE, every=30).transitions


@pytest.mark.parametrize("contained", [True, None])
def test_in_a_container_nobody_knows_whose_memory_it_is(*, contained: bool | None) -> None:
    """NVML names the processes of the container alone."""
    ward = Ward()
    ward.processes(contained=contained)
    ward.gpu(3, **HELD)
    assert not ward.go_on(20 * MINUTE, every=30).transitions


def test_a_job_that_ends_slowly_leaves_no_orphan() -> None:
    """Its memory outlives it by minutes, now and then."""
    ward = Ward()
    for _ in range(5):
        ward.gpu(3, **HELD)
        ward.go_on(4 * MINUTE)
        ward.gpu(3, memory_used_bytes=0.5 * GIB)
        ward.go_on(MINUTE)
    assert not ward.transitions


def waiting(**readings: Any) -> Ward:
    """GPU 3 runs kernels that wait."""
    ward = Ward()
    told: dict[str, Any] = {"utilization_ratio": 1.0, "power_watts": 130.0, "dram_active_ratio": 0.01}
    ward.gpu(3, **told | readings)
    return ward


def test_kernels_that_wait_for_a_peer_are_told() -> None:
    """After a quarter of an hour; over when they go on."""
    ward = waiting()
    assert not ward.go_on(13 * MINUTE, every=15).verdicts
    verdict = ward.go_on(3 * MINUTE, every=15).verdict("gpu_spin", 3)
    assert verdict is not None
    assert (verdict.level, verdict.action) == (Level.WARN, Action.RESTART)
    assert (
        verdict.reason
        == "It was busy 100% of 15 minutes at no more than 130 W of 700: its kernels probably wait for a peer."
    )
    ward.gpu(3, power_watts=600.0)
    assert not ward.go_on(10 * MINUTE, every=15).verdicts


@each_case(
    "readings",
    [
        {"power_watts": 250.0},
        {"utilization_ratio": 0.9},
        {"dram_active_ratio": 0.3},
        {"utilization_ratio": None, "mig_mode": 1.0},
        {"power_watts": None},
    ],
    ids=["at work", "not always", "reads memory", "mig", "unread"],
)
def test_kernels_that_do_something(readings: dict[str, Any]) -> None:
    """However little of the power it needs."""
    assert not waiting(**readings).go_on(40 * MINUTE, every=30).transitions


def test_work_now_and_then_is_no_waiting() -> None:
    """Light steps, and a heavy one every ten minutes."""
    ward = waiting()
    for _ in range(4):
        ward.gpu(3, power_watts=130.0)
        ward.go_on(10 * MINUTE, every=15)
        ward.gpu(3, power_watts=600.0)
        ward.go_on(MINUTE, every=15)
    assert not ward.transitions


def test_without_performance_monitoring_power_alone_counts() -> None:
    """As on Ampere."""
    ward = waiting(dram_active_ratio=None)
    assert ward.go_on(16 * MINUTE, every=15).level("gpu_spin", 3) is Level.WARN


def test_persistence_mode_that_is_off_is_worth_a_word() -> None:
    """Not while the node comes up."""
    ward = Ward()
    ward.gpu(3, persistence_mode=0.0)
    assert not ward.go_on(14 * MINUTE, every=15).verdicts
    assert ward.go_on(2 * MINUTE, every=15).level("gpu_persistence_off", 3) is Level.WARN
    ward.gpu(3, persistence_mode=1.0)
    assert not ward.go_on(75).verdicts


@pytest.mark.parametrize(
    ("readings", "words"),
    [
        ({"ecc_mode": 1.0, "ecc_mode_pending": 0.0}, "ECC off"),
        ({"mig_mode": 0.0, "mig_mode_pending": 1.0}, "MIG on"),
        ({"mig_mode": 0.0, "mig_mode_pending": 0.0}, None),
        ({"ecc_mode": 1.0, "ecc_mode_pending": None}, None),
    ],
)
def test_a_change_that_waits_for_a_reset_is_told_after_an_hour(readings: dict[str, Any], words: str | None) -> None:
    """It would take effect when nobody expects it."""
    ward = Ward()
    ward.gpu(3, **readings)
    assert not ward.go_on(59 * MINUTE, every=30).verdicts
    verdict = ward.go_on(2 * MINUTE, every=15).verdict("gpu_settings_pending", 3)
    assert (verdict and verdict.reason) == (words and f"A change is pending until a reset: {words}.")


def test_a_gpu_that_is_released_keeps_what_it_had() -> None:
    """Nobody looks, so nobody can tell."""
    ward = Ward()
    ward.gpu(3, persistence_mode=0.0, **HELD)
    ward.go_on(16 * MINUTE, every=15)
    before = ward.active_checks()
    ward.gpu(3, state={"released": True}, persistence_mode=None, memory_used_bytes=None, processes=None)
    assert ward.go_on(20 * MINUTE, every=30).active_checks() == before == ["gpu_memory_orphaned", "gpu_persistence_off"]


def test_each_of_them_can_be_switched_off() -> None:
    """By its limit."""
    limits = ("stuck_process_seconds", "orphaned_memory_bytes", "spin_power_ratio")
    ward = Ward(policy=Policy(thresholds=dict.fromkeys(limits)))
    ward.processes(stuck=(stuck(ward, "3", minutes=9),))
    ward.gpu(3, utilization_ratio=1.0, power_watts=130.0)
    ward.gpu(2, **HELD)
    assert not ward.go_on(20 * MINUTE, every=30).transitions
