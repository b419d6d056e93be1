"""Checks of the PCIe links of GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from judging import Ward

from gpumon.health.verdict import Action, Level
from gpumon.model.error_event import AER, AER_FATAL, AER_NONFATAL
from gpumon.model.records import StoredGpu

PORT = "00000000:15:01.0"
STORED = StoredGpu(uuid="", bus_id="", serial="", name="", first_wall=0.0, last_wall=0.0)


def node(**readings: Any) -> Ward:
    """Four GPUs on sixteen lanes of generation 5."""
    ward = Ward()
    whole: dict[str, Any] = {
        "pcie_link_width": 16.0,
        "pcie_link_width_max": 16.0,
        "pcie_link_generation": 5.0,
        "pcie_link_generation_max": 5.0,
        "pcie_replays_total": 40.0,
    }
    for index in range(4):
        ward.gpu(index, pcie_errors_total={"fatal": 0.0, "non_fatal": 0.0, "correctable": 9.0}, **{**whole, **readings})
    return ward


def at_slot(ward: Ward, index: int, *, lanes: float, accepted: bool = False) -> None:
    """Set the highest number of lanes that the GPU had at its address."""
    stored = replace(ward.report.gpus[index].stored or STORED, lanes=lanes, lanes_accepted=accepted)
    ward.gpu(index, state={"stored": stored})


def test_a_busy_link_that_lost_lanes_is_a_failure() -> None:
    """A link that is narrower than before fails after ten minutes of work, and clears when the lanes return."""
    ward = node(utilization_ratio=0.6)
    at_slot(ward, 3, lanes=16.0)
    ward.gpu(3, pcie_link_width=8.0)
    assert not ward.go_on(500).verdicts
    verdict = ward.go_on(120).verdict("pcie_width_degraded", 3)
    assert verdict is not None
    assert (verdict.level, verdict.reason) == (
        Level.FAIL,
        "The PCIe link had 8 of 16 lanes through ten minutes of work; it had 16 before.",
    )
    ward.gpu(3, pcie_link_width=16.0, utilization_ratio=0.0)
    assert not ward.go_on(90).verdicts


def test_a_link_that_is_narrower_while_idle_raises_no_verdict() -> None:
    ward = node(utilization_ratio=0.0, pcie_link_width=8.0)
    for index in range(4):
        at_slot(ward, index, lanes=16.0)
    assert not ward.go_on(1200, every=15).verdicts
    ward.gpu(3, utilization_ratio=1.0, pcie_link_width=16.0)
    assert not ward.go_on(300, every=15).verdicts
    ward.gpu(3, utilization_ratio=0.0, pcie_link_width=8.0)
    assert not ward.go_on(900, every=15).verdicts


def test_a_link_narrower_than_those_of_most_neighbours_is_a_failure() -> None:
    """A GPU that was never wider here fails if most of its neighbours of the same product are wider."""
    ward = node(utilization_ratio=0.6)
    for index in range(4):
        at_slot(ward, index, lanes=8.0 if index == 3 else 16.0)
    ward.gpu(3, pcie_link_width=8.0)
    verdict = ward.go_on(630).verdict("pcie_width_degraded", 3)
    assert verdict is not None
    assert (verdict.level, verdict.reason.rpartition("; ")[2]) == (
        Level.FAIL,
        "most GPUs of its kind here have 16.",
    )


@pytest.mark.parametrize("accepted", [False, True])
def test_a_link_that_was_never_wider_is_a_warning_until_it_is_accepted(*, accepted: bool) -> None:
    """A board or riser may be narrow by design: one warning, and none once an operator has accepted it."""
    ward = node(utilization_ratio=0.6, pcie_link_width=8.0)
    for index in range(4):
        at_slot(ward, index, lanes=8.0, accepted=accepted)
    ward.go_on(900, every=15)
    levels = [ward.level("pcie_width_degraded", index) for index in range(4)]
    assert levels == ([Level.OK] * 4 if accepted else [Level.WARN] * 4)


def test_the_width_of_a_gpu_in_mig_mode_is_judged_by_its_active_multiprocessors() -> None:
    ward = node(utilization_ratio=None, sm_active_ratio=0.6)
    at_slot(ward, 3, lanes=16.0)
    ward.gpu(3, pcie_link_width=8.0)
    assert ward.go_on(630).level("pcie_width_degraded", 3) is Level.FAIL


def test_a_lower_generation_of_an_idle_gpu_raises_no_verdict() -> None:
    ward = node(utilization_ratio=0.0, pcie_link_generation=1.0)
    for _ in range(5):
        ward.go_on(120, every=15)
        ward.gpu(3, utilization_ratio=0.5)
        ward.go_on(10)
        ward.gpu(3, pcie_link_generation=5.0)
        ward.go_on(300, every=15)
        ward.gpu(3, utilization_ratio=0.0)
        ward.go_on(15)
        ward.gpu(3, pcie_link_generation=1.0)
    assert not ward.verdicts
    assert not ward.transitions


def test_a_busy_gpu_at_a_low_generation_is_a_warning() -> None:
    """The warning is raised after ten busy minutes, remains while the GPU is idle, and clears at full speed."""
    ward = node(utilization_ratio=0.6)
    ward.gpu(3, pcie_link_generation=3.0)
    assert not ward.go_on(500).verdicts
    verdict = ward.go_on(120).verdict("pcie_generation_degraded", 3)
    assert verdict is not None
    assert verdict.level is Level.WARN
    ward.gpu(3, utilization_ratio=0.0)
    assert ward.go_on(1800, every=30).level("pcie_generation_degraded", 3) is Level.WARN
    ward.gpu(3, utilization_ratio=0.6, pcie_link_generation=5.0)
    assert not ward.go_on(90).verdicts


@pytest.mark.parametrize(
    ("generation", "lanes", "normal"), [(5.0, 16.0, 31), (4.0, 16.0, 16), (3.0, 16.0, 8), (3.0, 8.0, 4)]
)
def test_the_replay_limit_depends_on_lanes_and_generation(generation: float, lanes: float, normal: int) -> None:
    """The normal replay rate of a link raises no verdict; twice that rate does."""
    kind = {"pcie_link_generation_max": generation, "pcie_link_generation": generation}
    ward = node(**kind, pcie_link_width=lanes, pcie_link_width_max=lanes)
    total = 40.0
    for _ in range(20):
        ward.gpu(3, pcie_replays_total=(total := total + normal))
        ward.go_on(60, every=15)
    assert not ward.verdicts
    for _ in range(6):
        ward.gpu(3, pcie_replays_total=(total := total + 2 * normal))
        ward.go_on(60, every=15)
    verdict = ward.verdict("pcie_replays", 3)
    assert verdict is not None
    assert verdict.evidence["normal_per_minute"] == normal
    assert set(ward.verdicts) == {verdict.key}
    assert not ward.go_on(420).verdicts


def test_replays_before_the_agent_started_do_not_count() -> None:
    assert not node(pcie_replays_total=1e9).go_on(900, every=15).verdicts


def errors(**kinds: float) -> dict[str, float]:
    return {"fatal": 0.0, "non_fatal": 0.0, "correctable": 999.0} | kinds


@pytest.mark.parametrize(("kinds", "level"), [({"non_fatal": 3.0}, Level.WARN), ({"fatal": 1.0}, Level.FAIL)])
def test_errors_of_the_link_remain_for_a_day(kinds: dict[str, float], level: Level) -> None:
    """A fatal error or several non-fatal ones remain for a day; correctable errors are left to the replay check."""
    ward = node().go_on(60)
    ward.gpu(3, pcie_errors_total=errors())
    assert not ward.go_on(60).verdicts
    ward.gpu(3, pcie_errors_total=errors(**kinds))
    assert ward.go_on(15).level("pcie_errors", 3) is level
    assert ward.go_on(80000, every=600).level("pcie_errors", 3) is level
    assert not ward.go_on(8000, every=600).verdicts


def test_single_non_fatal_errors_raise_no_verdict() -> None:
    """One or two non-fatal errors in an hour are healthy: the driver's count may include corrected errors."""
    ward = node().go_on(60)
    for count in range(1, 8):
        ward.gpu(3, pcie_errors_total=errors(non_fatal=float(count)))
        assert not ward.go_on(2000, every=15).verdicts


def test_one_non_fatal_error_beside_a_kernel_message_is_a_warning() -> None:
    """One non-fatal error is a warning if the kernel reported an error of the same link within the hour."""
    ward = node().go_on(60)
    ward.gpu(2, state={"port_above": PORT}, pcie_errors_total=errors())
    ward.go_on(30)
    ward.event(2, AER_NONFATAL, kind=AER, bus_id=PORT, uuid=None, fatal=False, text="PCIe Bus Error")
    ward.gpu(2, pcie_errors_total=errors(non_fatal=1.0))
    verdict = ward.go_on(15).verdict("pcie_errors", 2)
    assert verdict is not None
    assert verdict.level is Level.WARN
    assert "may include corrected ones" in verdict.reason


def test_a_full_error_counter_is_named() -> None:
    """The reason says that a counter of the driver is full, because it counts no more."""
    ward = node().go_on(60)
    ward.gpu(3, pcie_errors_total=errors(fatal=255.0))
    verdict = ward.go_on(15).verdict("pcie_errors", 3)
    assert verdict is not None
    assert "full at 255" in verdict.reason


def test_a_kernel_pcie_error_of_a_gpu_or_its_upstream_port_is_a_failure() -> None:
    """A kernel line on the GPU or its upstream port fails that GPU; lines on other devices do not."""
    ward = node()
    ward.gpu(2, state={"port_above": PORT})
    ward.event(0, AER_FATAL, kind=AER, bus_id="00000000:99:00.0", uuid=None, fatal=True, text="PCIe Bus Error")
    assert not ward.go_on(60).verdicts
    ward.event(2, AER_FATAL, kind=AER, bus_id=PORT, uuid=None, fatal=True, text="PCIe Bus Error")
    verdict = ward.go_on().verdict("pcie_fatal_error", 2)
    assert verdict is not None
    assert verdict.action is Action.REBOOT
    assert f"the port above it ({PORT})" in verdict.reason
    ward.event(2, AER_FATAL, kind=AER, uuid=None, fatal=True, text="PCIe Bus Error")
    assert ward.go_on().level("pcie_fatal_error", 2) is Level.FAIL


def test_a_lost_gpu_inhibits_its_pcie_verdicts() -> None:
    ward = node().go_on(60)
    ward.event(2, AER_FATAL, kind=AER, uuid=None, fatal=True, text="PCIe Bus Error")
    ward.go_on(15)
    ward.fault(2, "lost")
    ward.go_on(15)
    assert [each.check for each in ward.report.health.primary] == ["gpu_lost"]


def test_pcie_errors_of_planned_work_are_no_fault() -> None:
    """A board that is swapped, or a GPU that is reset, logs PCIe errors; one of another GPU counts."""
    ward = node()
    ward.maintain(600)
    ward.event(2, AER_FATAL, kind=AER, uuid=None, fatal=True, text="PCIe Bus Error")
    ward.go_on(60).end_windows()
    ward.go_on(60).release(0, 600)
    ward.event(0, AER_FATAL, kind=AER, uuid=None, fatal=True, text="PCIe Bus Error")
    ward.event(1, AER_FATAL, kind=AER, uuid=None, fatal=True, text="PCIe Bus Error")
    ward.go_on(60).end_windows()
    ward.go_on(120)
    assert [(each.check, each.device) for each in ward.report.health.primary] == [
        ("pcie_fatal_error", ward.report.gpus[1].uuid)
    ]


def test_a_gpu_that_does_not_respond_keeps_its_pcie_verdicts() -> None:
    ward = node(utilization_ratio=0.6)
    ward.gpu(3, pcie_link_width=8.0)
    ward.go_on(630)
    ward.gpu(3, pcie_link_width=None, pcie_link_generation=None, pcie_replays_total=None, pcie_errors_total=None)
    assert ward.go_on(900, every=15).active_checks() == ["pcie_width_degraded"]
