"""Checks of the use of GPUs: stuck processes, memory without an owner, settings, GPUs held idle or always busy."""

from __future__ import annotations

from typing import Any

import pytest
from each_case import each_case
from judging import Ward

from gpumon.health.check_row import HOUR, MINUTE
from gpumon.health.policy import Policy
from gpumon.health.verdict import Action, Level
from gpumon.model.nvlink import C2cLink
from gpumon.model.snapshot import StuckProcess

GIB = float(1 << 30)
HELD: dict[str, Any] = {"memory_used_bytes": 6 * GIB, "processes": 0.0, "utilization_ratio": 0.0}


def stuck_process(ward: Ward, *gpus: str, minutes: float = 0.0, in_driver: bool | None = True) -> StuckProcess:
    return StuckProcess(since=ward.at - minutes * MINUTE, gpus=gpus, in_driver=in_driver)


def test_a_stuck_process_is_a_failure_after_five_minutes() -> None:
    """A process stuck in the kernel is a failure of the node; the reason names GPUs but no process."""
    ward = Ward()
    ward.processes(stuck=(stuck_process(ward, "3"), stuck_process(ward, "2", "3")))
    assert not ward.go_on(295).verdicts
    verdict = ward.go_on(10).verdict("gpu_process_stuck")
    assert verdict is not None
    assert (verdict.device, verdict.level, verdict.action) == ("", Level.FAIL, Action.REBOOT)
    assert verdict.reason == "2 processes that hold GPU 2, 3 have been blocked in NVIDIA's driver for 5 minutes."
    ward.processes(stuck=None)
    assert ward.go_on(30 * MINUTE, every=30).verdict("gpu_process_stuck")
    ward.processes()
    assert not ward.go_on(70).verdicts


def test_processes_that_return_within_five_minutes_raise_no_verdict() -> None:
    ward = Ward()
    for _ in range(4):
        ward.processes(stuck=(stuck_process(ward, "3"),))
        ward.go_on(4 * MINUTE)
    assert not ward.transitions


def test_a_stuck_process_without_known_gpus_is_a_failure() -> None:
    """A killed process has no open device files but may still be stuck in the driver."""
    ward = Ward()
    ward.processes(stuck=(stuck_process(ward, minutes=7),))
    verdict = ward.go_on().verdict("gpu_process_stuck")
    assert verdict is not None
    assert verdict.reason == "A process that holds NVIDIA's devices has been blocked in NVIDIA's driver for 7 minutes."


def test_a_process_that_is_stuck_outside_of_the_driver_is_a_warning() -> None:
    """A stall of a file system needs no reboot, nor does one whose place is unknown; the driver's comes first."""
    ward = Ward()
    elsewhere = stuck_process(ward, "1", minutes=9, in_driver=False)
    reasons = []
    for unread in ((), (stuck_process(ward, "2", minutes=7, in_driver=None),)):
        ward.processes(stuck=(elsewhere, *unread))
        verdict = ward.go_on(10).verdict("gpu_process_stuck")
        assert verdict is not None
        assert (verdict.level, verdict.action) == (Level.WARN, Action.INSPECT)
        reasons.append(verdict.reason.partition(" has been blocked ")[2])
    assert reasons == [
        "in the kernel, outside of NVIDIA's driver (a file system?), for 9 minutes.",
        "in the kernel (its stack cannot be read without root) for 7 minutes.",
    ]
    ward.processes(stuck=(elsewhere, stuck_process(ward, "3", minutes=6)))
    verdict = ward.go_on(10).verdict("gpu_process_stuck")
    assert verdict is not None
    assert (verdict.level, verdict.evidence["gpus"]) == (Level.FAIL, "3")


def test_a_stuck_gpu_inhibits_its_process_verdicts() -> None:
    ward = Ward()
    ward.fault(3, "stuck")
    ward.processes(stuck=(stuck_process(ward, "3"),))
    ward.gpu(2, **HELD)
    ward.go_on(6 * MINUTE)
    assert ward.active_checks() == ["gpu_memory_orphaned", "gpu_process_stuck", "gpu_stuck"]
    assert [each.check for each in ward.report.health.primary] == ["gpu_stuck"]


def test_orphaned_memory_is_a_warning_after_five_minutes() -> None:
    """The warning remains while processes are unknown and clears when a process holds the memory."""
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
def test_memory_that_is_not_orphaned_raises_no_verdict(readings: dict[str, Any]) -> None:
    """Little memory, memory of a process, and memory that NVML may not attribute raise no verdict."""
    ward = Ward()
    ward.gpu(3, **HELD | readings)
    assert not ward.go_on(20 * MINUTE, every=30).transitions


@pytest.mark.parametrize("contained", [True, None])
def test_orphaned_memory_is_not_checked_in_a_container(*, contained: bool | None) -> None:
    """NVML lists only processes of the container, so the owner of the memory is unknown."""
    ward = Ward()
    ward.processes(contained=contained)
    ward.gpu(3, **HELD)
    assert not ward.go_on(20 * MINUTE, every=30).transitions


def test_memory_released_within_five_minutes_raises_no_verdict() -> None:
    ward = Ward()
    for _ in range(5):
        ward.gpu(3, **HELD)
        ward.go_on(4 * MINUTE)
        ward.gpu(3, memory_used_bytes=0.5 * GIB)
        ward.go_on(MINUTE)
    assert not ward.transitions


def ward_with_waiting_kernels(**readings: Any) -> Ward:
    """Return a node whose GPU 3 runs kernels that wait."""
    ward = Ward()
    defaults: dict[str, Any] = {"utilization_ratio": 1.0, "power_watts": 130.0, "dram_active_ratio": 0.01}
    ward.gpu(3, **defaults | readings)
    return ward


def test_kernels_that_wait_for_a_peer_are_a_warning() -> None:
    """Waiting kernels are a warning after 15 minutes, which clears when they draw power again."""
    ward = ward_with_waiting_kernels()
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
        {"processes": 0.0, "memory_used_bytes": 0.0},
    ],
    ids=["at work", "not always", "reads memory", "mig", "unread", "no process"],
)
def test_working_kernels_raise_no_spin_verdict(readings: dict[str, Any]) -> None:
    """A GPU that works, pauses, reads memory or cannot be read raises no verdict."""
    assert not ward_with_waiting_kernels(**readings).go_on(40 * MINUTE, every=30).transitions


def test_light_kernels_with_periodic_work_raise_no_spin_verdict() -> None:
    """A minute of heavy work every ten minutes raises no verdict."""
    ward = ward_with_waiting_kernels()
    for _ in range(4):
        ward.gpu(3, power_watts=130.0)
        ward.go_on(10 * MINUTE, every=15)
        ward.gpu(3, power_watts=600.0)
        ward.go_on(MINUTE, every=15)
    assert not ward.transitions


@each_case(
    ("memory_utilization", "expected"),
    [(0.01, Level.WARN), (0.2, Level.OK), (None, Level.OK)],
    ids=["waits", "reads memory", "unknown"],
)
def test_without_gpm_the_spin_check_uses_memory_utilization(memory_utilization: float | None, expected: Level) -> None:
    """Up to Ada NVML's memory utilization shows whether kernels work; without that there is no verdict."""
    ward = ward_with_waiting_kernels(dram_active_ratio=None, memory_utilization_ratio=memory_utilization)
    assert ward.go_on(16 * MINUTE, every=15).level("gpu_spin", 3) is expected


def test_disabled_persistence_mode_is_a_warning() -> None:
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
def test_a_setting_pending_for_an_hour_raises_a_verdict(readings: dict[str, Any], words: str | None) -> None:
    ward = Ward()
    ward.gpu(3, **readings)
    assert not ward.go_on(59 * MINUTE, every=30).verdicts
    verdict = ward.go_on(2 * MINUTE, every=15).verdict("gpu_settings_pending", 3)
    assert (verdict and verdict.reason) == (words and f"A change is pending until a reset: {words}.")


def test_a_released_gpu_keeps_its_work_verdicts() -> None:
    ward = Ward()
    ward.gpu(3, persistence_mode=0.0, **HELD)
    ward.go_on(16 * MINUTE, every=15)
    before = ward.active_checks()
    ward.gpu(3, state={"released": True}, persistence_mode=None, memory_used_bytes=None, processes=None)
    assert ward.go_on(20 * MINUTE, every=30).active_checks() == before == ["gpu_memory_orphaned", "gpu_persistence_off"]


def test_each_work_check_can_be_disabled() -> None:
    limits = ("max_stuck_process_seconds", "orphaned_memory_bytes", "spin_power_ratio")
    ward = Ward(policy=Policy(thresholds=dict.fromkeys(limits)))
    ward.processes(stuck=(stuck_process(ward, "3", minutes=9),))
    ward.gpu(3, utilization_ratio=1.0, power_watts=130.0)
    ward.gpu(2, **HELD)
    assert not ward.go_on(20 * MINUTE, every=30).transitions


def use_gpu(ward: Ward, share: float, *, seconds: float, processes: float = 1.0) -> Ward:
    """GPU 1 is busy for this share of the time; processes hold it."""
    for _ in range(int(seconds / 30)):
        now = ward.report.gpus[1].gpu
        assert now.busy_seconds_total is not None
        assert now.observed_seconds_total is not None
        ward.gpu(
            1,
            busy_seconds_total=now.busy_seconds_total + 30 * share,
            observed_seconds_total=now.observed_seconds_total + 30,
            processes=processes,
        )
        ward.go_on(30, every=30)
    return ward


def test_a_gpu_that_is_held_and_idle_for_an_hour_is_reported() -> None:
    """For information, with its busy share; it is cleared when the GPU works again."""
    ward = use_gpu(Ward(gpus=2, ports=0), 0.02, seconds=50 * MINUTE)
    assert ward.verdict("gpu_idle") is None
    verdict = use_gpu(ward, 0.02, seconds=20 * MINUTE).verdict("gpu_idle", 1)
    assert verdict is not None
    assert verdict.level is Level.WARN
    assert verdict.reason == "Processes held it for an hour in which it was busy 2% of the time."
    assert use_gpu(ward, 1.0, seconds=HOUR).verdict("gpu_idle") is None


@pytest.mark.parametrize(
    ("share", "processes", "thresholds"),
    [(0.5, 1.0, {}), (0.02, 0.0, {}), (0.02, 1.0, {"min_busy_ratio": 0.01}), (0.02, 1.0, {"min_busy_ratio": None})],
)
def test_a_gpu_that_works_or_is_free_is_not_idle(
    share: float, processes: float, thresholds: dict[str, float | None]
) -> None:
    ward = Ward(gpus=2, ports=0, policy=Policy(thresholds=thresholds))
    assert use_gpu(ward, share, seconds=70 * MINUTE, processes=processes).verdict("gpu_idle") is None


def test_a_busy_gpu_is_reported_only_above_a_configured_limit() -> None:
    """Off by default: training is meant to keep a GPU busy."""
    assert use_gpu(Ward(gpus=2, ports=0), 0.95, seconds=70 * MINUTE).verdict("gpu_busy") is None
    ward = Ward(gpus=2, ports=0, policy=Policy(thresholds={"max_busy_ratio": 0.85}))
    verdict = use_gpu(ward, 0.95, seconds=70 * MINUTE).verdict("gpu_busy", 1)
    assert verdict is not None
    assert verdict.reason == "It was busy 95% of the last hour, above the limit of 85%."
