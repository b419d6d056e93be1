"""Clocks: slowdowns that last, stragglers among busy neighbours, and what is neither."""

from __future__ import annotations

from typing import Any

import pytest
from each_case import each_case
from judging import Ward

from gpumon.health.verdict import Action, Level
from gpumon.model.gpu import CLOCK_EVENTS

MINUTE = 60.0
NOTHING = dict.fromkeys(CLOCK_EVENTS, 0.0)


def clocks(sm: float) -> dict[str, float]:
    return {"graphics": sm, "sm": sm, "memory": 2.619e9, "video": 1.5e9}


def at_work(**readings: Any) -> Ward:
    """All GPUs under the same load; GPU 3 has these readings."""
    ward = Ward()
    for index in range(4):
        ward.gpu(index, utilization_ratio=0.97, power_watts=650.0, clock_event_active=NOTHING)
    ward.gpu(3, **readings)
    return ward


def settle(ward: Ward, minutes: float = 12) -> Ward:
    return ward.go_on(minutes * MINUTE, every=15)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("hw_slowdown", Level.FAIL), ("hw_thermal", Level.FAIL), ("sw_thermal", Level.WARN), ("sw_power_cap", Level.OK)],
)
def test_six_of_ten_minutes_are_a_slowdown(reason: str, expected: Level) -> None:
    """Hardware is a fault, software's way a warning, a power limit in use nothing."""
    ward = at_work(clock_event_active=NOTHING | {reason: 1.0})
    assert not ward.go_on(5.5 * MINUTE, every=15).verdicts
    assert ward.go_on(MINUTE, every=15).level("gpu_hw_slowdown", 3) is expected
    assert len(ward.verdicts) == (expected is not Level.OK)


def test_five_of_ten_minutes_are_none() -> None:
    """On and off, for an hour."""
    ward = at_work()
    for _ in range(6):
        ward.gpu(3, clock_event_active=NOTHING | {"hw_slowdown": 1.0})
        ward.go_on(5 * MINUTE, every=15)
        ward.gpu(3, clock_event_active=NOTHING)
        ward.go_on(5 * MINUTE, every=15)
    assert not ward.transitions


def test_a_slowdown_ends_when_it_was_away_for_long_enough() -> None:
    """A time in which the slowdown could not be read does not count."""
    ward = at_work(clock_event_active=NOTHING | {"hw_slowdown": 1.0})
    settle(ward)
    ward.gpu(3, clock_event_active=None)
    assert ward.go_on(20 * MINUTE, every=15).level("gpu_hw_slowdown", 3) is Level.FAIL
    ward.gpu(3, clock_event_active=NOTHING)
    assert ward.go_on(2 * MINUTE, every=15).level("gpu_hw_slowdown", 3) is Level.FAIL
    assert not ward.go_on(10 * MINUTE, every=15).verdicts


def test_a_slowdown_of_a_braked_gpu_follows_from_the_brake() -> None:
    """One fault, one verdict that pages."""
    ward = at_work(clock_event_active=NOTHING | {"hw_slowdown": 1.0, "hw_power_brake": 1.0}, clock_hertz=clocks(4e8))
    settle(ward)
    assert ward.active_checks() == ["gpu_clock_straggler", "gpu_hw_slowdown", "gpu_power_brake"]
    assert [each.check for each in ward.report.health.primary] == ["gpu_power_brake"]


def test_a_slow_gpu_among_busy_ones_is_named_with_its_reasons() -> None:
    """After ten minutes of it."""
    ward = at_work(clock_hertz=clocks(1.2e9), clock_event_active=NOTHING | {"applications_clocks": 1.0})
    assert not ward.go_on(8 * MINUTE, every=15).verdicts
    verdict = settle(ward, 4).verdict("gpu_clock_straggler", 3)
    assert verdict is not None
    assert verdict.reason == "Its clock is 1200 MHz, that of its busy neighbours 1980: clocks set by an operator."
    assert (verdict.level, verdict.action) == (Level.WARN, Action.RESET)
    assert len(ward.verdicts) == 1
    ward.gpu(3, clock_hertz=clocks(1.98e9))
    assert not settle(ward).verdicts


def test_heat_is_told_once_however_many_reasons_name_it() -> None:
    """The hardware's word is the stronger one."""
    hot = NOTHING | {"hw_thermal": 1.0, "sw_thermal": 1.0}
    verdict = settle(at_work(clock_hertz=clocks(1.2e9), clock_event_active=hot)).verdict("gpu_clock_straggler", 3)
    assert verdict is not None
    assert verdict.reason.endswith(": heat (hardware).")
    assert verdict.action is Action.INSPECT, "no reset cools a GPU"


@each_case(
    "readings",
    [
        {"clock_hertz": clocks(1.79e9)},
        {"clock_hertz": clocks(1.2e9), "utilization_ratio": 0.7},
        {"clock_hertz": clocks(3.45e8), "utilization_ratio": 0.0, "clock_event_active": NOTHING | {"idle": 1.0}},
        {"clock_hertz": clocks(1.2e9), "utilization_ratio": None, "mig_mode": 1.0},
        {"clock_hertz": clocks(1.2e9), "name": "NVIDIA H100 PCIe"},
        {"clock_hertz": clocks(1.2e9), "clock_event_active": NOTHING | {"sw_power_cap": 1.0}},
        {"clock_hertz": None},
    ],
    ids=["a little", "half busy", "idle", "mig", "another product", "heavier work", "unread"],
)
def test_what_is_no_straggler(readings: dict[str, Any]) -> None:
    """Nearly as fast; not busy; not comparable; alone at the power limit, because its work is another."""
    assert not settle(at_work(**readings), 30).transitions


def test_two_busy_gpus_do_not_tell_who_is_slow() -> None:
    """The others have nothing to do."""
    ward = at_work(clock_hertz=clocks(1.2e9))
    for index in (0, 1):
        ward.gpu(index, utilization_ratio=0.0, clock_hertz=clocks(3.45e8))
    assert not settle(ward, 30).transitions


def test_a_rank_that_ends_first_is_no_straggler() -> None:
    """The clock of a GPU is low in the last minute of a job, in which only the others still compute."""
    ward = settle(at_work())
    ward.gpu(3, utilization_ratio=0.0, clock_hertz=clocks(3.45e8), clock_event_active=NOTHING | {"idle": 1.0})
    assert not ward.go_on(90, every=15).transitions
    ward.gpu(3, utilization_ratio=0.97, clock_hertz=clocks(1.98e9), clock_event_active=NOTHING)
    assert not settle(ward).transitions


LATCHED: dict[str, Any] = {
    "architecture": "Blackwell",
    "utilization_ratio": 1.0,
    "memory_utilization_ratio": 0.0,
    "sm_active_ratio": 0.0,
    "memory_used_bytes": 0.0,
    "processes": 0.0,
    "clock_hertz": clocks(3.45e8),
}
"""Readings of an idle GPU whose utilization is latched at 100 %."""


@each_case(("processes", "expected"), [(0.0, Level.OK), (1.0, Level.WARN)])
def test_a_latched_utilization_is_no_straggler(processes: float, expected: Level) -> None:
    """The clock of an idle GPU is low. With a process the same readings are those of a slow GPU."""
    ward = settle(at_work(**{**LATCHED, "processes": processes}), 30)
    assert ward.level("gpu_clock_straggler", 3) is expected


@each_case(("processes", "expected"), [(0.0, Level.OK), (1.0, Level.WARN)])
def test_a_latched_utilization_does_not_count_as_busy(processes: float, expected: Level) -> None:
    """Two busy GPUs beside a latched one are too few to find the slow one."""
    ward = at_work(clock_hertz=clocks(1.2e9))
    ward.gpu(0, utilization_ratio=0.0, clock_hertz=clocks(3.45e8))
    ward.gpu(1, **{**LATCHED, "processes": processes, "clock_hertz": clocks(1.98e9)})
    assert settle(ward, 30).level("gpu_clock_straggler", 3) is expected


def test_at_the_power_limit_with_all_others_it_is_a_straggler() -> None:
    """The same work at the same limit should make the same clock."""
    ward = at_work()
    for index in range(4):
        ward.gpu(index, clock_event_active=NOTHING | {"sw_power_cap": 1.0}, clock_hertz=clocks(1.7e9))
    ward.gpu(2, clock_hertz=clocks(1.3e9))
    assert settle(ward).level("gpu_clock_straggler", 2) is Level.WARN
    assert len(ward.verdicts) == 1


def test_jobs_that_start_and_stop_are_no_stragglers() -> None:
    """Loads and clocks of all go up and down together, and one of them is a minute late."""
    ward = at_work()
    for _ in range(4):
        for busy in (True, False):
            for late in (True, False):
                for index in range(4):
                    on = busy != (late and index == 3)
                    ward.gpu(index, utilization_ratio=0.97 if on else 0.0, clock_hertz=clocks(1.98e9 if on else 3.45e8))
                ward.go_on(MINUTE if late else 11 * MINUTE, every=15)
    assert not ward.transitions
