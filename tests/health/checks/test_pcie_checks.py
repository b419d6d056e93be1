"""Checks of the PCIe links of GPUs."""

from __future__ import annotations

from typing import Any

import pytest
from judging import Ward

from gpumon.health.verdict import Action, Level
from gpumon.model.error_event import AER, AER_FATAL

PORT = "00000000:15:01.0"


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


def test_a_link_that_lost_lanes_is_a_failure() -> None:
    """After five minutes; idle or not. It clears when they are back."""
    ward = node(utilization_ratio=0.0)
    ward.gpu(3, pcie_link_width=8.0)
    assert not ward.go_on(285).verdicts
    verdict = ward.go_on(30).verdict("pcie_width_degraded", 3)
    assert verdict is not None
    assert verdict.reason == "The PCIe link has 8 of 16 lanes."
    ward.gpu(3, pcie_link_width=16.0)
    assert not ward.go_on(90).verdicts


def test_idle_gpus_lower_their_generation() -> None:
    """By design: with nothing to do, for a moment of work, and while a job begins or ends."""
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


def test_a_gpu_that_works_at_a_low_generation_is_a_warning() -> None:
    """Through ten minutes; that it idles later takes nothing back, full speed does."""
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
def test_replays_are_judged_by_lanes_and_generation(generation: float, lanes: float, normal: int) -> None:
    """So many a minute are normal, for hours; twice that is not."""
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


def test_replays_of_before_the_agent_are_none_of_its_business() -> None:
    """Nor is what a counter gains when the agent looks again after a hang."""
    assert not node(pcie_replays_total=1e9).go_on(900, every=15).verdicts


@pytest.mark.parametrize(("kind", "level"), [("non_fatal", Level.WARN), ("fatal", Level.FAIL)])
def test_an_error_that_is_not_corrected_stays_for_a_day(kind: str, level: Level) -> None:
    """Correctable ones are the job of the replays."""
    ward = node().go_on(60)
    ward.gpu(3, pcie_errors_total={"fatal": 0.0, "non_fatal": 0.0, "correctable": 999.0})
    assert not ward.go_on(60).verdicts
    ward.gpu(3, pcie_errors_total={"fatal": 0.0, "non_fatal": 0.0, "correctable": 999.0} | {kind: 1.0})
    assert ward.go_on(15).level("pcie_errors", 3) is level
    assert ward.go_on(80000, every=600).level("pcie_errors", 3) is level
    assert not ward.go_on(8000, every=600).verdicts


def test_the_kernels_word_on_a_gpu_or_the_port_above_it_is_a_failure() -> None:
    """Of that GPU; the word on other devices is nothing."""
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


def test_a_gpu_that_fell_off_the_bus_explains_its_link() -> None:
    """One fault, one primary verdict."""
    ward = node().go_on(60)
    ward.event(2, AER_FATAL, kind=AER, uuid=None, fatal=True, text="PCIe Bus Error")
    ward.go_on(15)
    ward.fault(2, "lost")
    ward.go_on(15)
    assert [one.check for one in ward.report.health.primary] == ["gpu_lost"]


def test_who_does_not_answer_is_not_judged() -> None:
    """And what was found stays."""
    ward = node()
    ward.gpu(3, pcie_link_width=8.0)
    ward.go_on(330)
    ward.gpu(3, pcie_link_width=None, pcie_link_generation=None, pcie_replays_total=None, pcie_errors_total=None)
    assert ward.go_on(900, every=15).active_checks() == ["pcie_width_degraded"]
