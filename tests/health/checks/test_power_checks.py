"""Power checks: brakes, limits that are too low, implausible draws. A limit that is in use is no fault."""

from __future__ import annotations

from typing import Any

from each_case import each_case
from judging import LOOK, Ward

from gpumon.health.check_row import Paging
from gpumon.health.policy import Policy
from gpumon.health.table import BY_NAME
from gpumon.health.verdict import Action, Level
from gpumon.model.gpu import CLOCK_EVENTS

MINUTE = 60.0
NOTHING = dict.fromkeys(CLOCK_EVENTS, 0.0)
CAPPED = NOTHING | {"sw_power_cap": 1.0}


def ward_with(**readings: Any) -> Ward:
    """Return a node whose GPU 3 has these readings."""
    ward = Ward()
    ward.gpu(3, **readings)
    return ward


def primary(ward: Ward) -> list[str]:
    return [each.check for each in ward.report.health.primary]


def test_a_power_brake_is_a_fault_after_minutes() -> None:
    """The verdict clears minutes after the brake was released."""
    ward = ward_with(clock_event_active=NOTHING | {"hw_power_brake": 1.0})
    assert not ward.go_on(3 * MINUTE).verdicts
    verdict = ward.go_on(90).verdict("gpu_power_brake", 3)
    assert verdict is not None
    assert (verdict.level, verdict.action) == (Level.FAIL, Action.INSPECT)
    assert primary(ward) == ["gpu_power_brake"]
    ward.gpu(3, clock_event_active=NOTHING)
    assert ward.go_on(10 * MINUTE).verdicts
    assert not ward.go_on(3 * MINUTE).verdicts


@each_case(
    ("seconds", "every", "thresholds", "expected"),
    [
        (0.005, 30, {}, Level.OK),
        (1.0, 30, {}, Level.OK),
        (5.0, 30, {}, Level.WARN),
        (5.0, 30, {"max_power_brake_ratio": None}, Level.OK),
        (20.0, 30, {}, Level.FAIL),
        (20.0, 30, {"power_brake_ratio": None}, Level.WARN),
    ],
)
def test_brakes_are_graded_by_their_share_of_time(
    seconds: float, every: int, thresholds: dict[str, float | None], expected: Level
) -> None:
    """The counter decides: polls read a brake that lasts a second, or none that lasts milliseconds."""
    ward = Ward(policy=Policy(thresholds=thresholds))
    ward.gpu(3, clock_event_seconds_total=NOTHING)
    for times in range(1, 31):
        ward.gpu(3, clock_event_active=NOTHING | {"hw_power_brake": 1.0 if seconds >= 1 else 0.0})
        ward.go_on(LOOK)
        counted = NOTHING | {"hw_power_brake": seconds * times}
        ward.gpu(3, clock_event_active=NOTHING, clock_event_seconds_total=counted)
        ward.go_on(every - LOOK)
    assert ward.level("gpu_power_brake", 3) is expected


def test_a_brake_that_never_ends_has_a_share_of_one() -> None:
    """The points of the counter span less than the window."""
    ward = Ward()
    for times in range(60):
        ward.gpu(3, clock_event_seconds_total=NOTHING | {"hw_power_brake": LOOK * times})
        ward.gpu(3, clock_event_active=NOTHING | {"hw_power_brake": 1.0})
        ward.go_on(LOOK)
    verdict = ward.verdict("gpu_power_brake", 3)
    assert verdict is not None
    assert verdict.evidence["hw_power_brake_ratio"] == 1.0


def test_a_warning_about_a_brake_sends_nothing() -> None:
    """A failure of one node is a ticket, because the scheduler drains the node."""
    assert {level: BY_NAME["gpu_power_brake"].paging(level) for level in (Level.WARN, Level.FAIL)} == {
        Level.WARN: Paging.NEVER,
        Level.FAIL: Paging.DAY,
    }


def test_a_short_brake_is_no_fault() -> None:
    """A short brake, as when another supply takes over, gives no verdict."""
    ward = ward_with(clock_event_active=NOTHING | {"hw_power_brake": 1.0})
    ward.go_on(10)
    ward.gpu(3, clock_event_active=NOTHING, clock_event_seconds_total=NOTHING | {"hw_power_brake": 9.0})
    assert not ward.go_on(30 * MINUTE, every=30).transitions


def test_a_brake_stays_while_the_gpu_cannot_be_read() -> None:
    ward = ward_with(clock_event_active=NOTHING | {"hw_power_brake": 1.0})
    ward.go_on(5 * MINUTE)
    ward.gpu(3, clock_event_active=None, clock_event_seconds_total=None)
    assert ward.go_on(30 * MINUTE, every=30).level("gpu_power_brake", 3) is Level.FAIL


LOW = {"power_limit_watts": 500.0, "power_limit_requested_watts": 700.0, "power_limit_default_watts": 700.0}


@each_case(
    ("limits", "expected"),
    [
        (LOW, Level.WARN),
        (LOW | {"power_limit_watts": 695.0}, Level.OK),
        (LOW | {"power_limit_requested_watts": 500.0}, Level.WARN),
        (LOW | {"power_limit_watts": 600.0, "power_limit_requested_watts": 600.0}, Level.OK),
        ({"power_limit_watts": 700.0}, Level.OK),
    ],
)
def test_only_a_limit_that_is_too_low_is_a_fault(limits: dict[str, float], expected: Level) -> None:
    """Limits below the requested one, or far below the board's, are faults; every one of these limits is in use."""
    ward = ward_with(clock_event_active=CAPPED, power_watts=500.0, **limits)
    assert ward.go_on(40 * MINUTE, every=30).level("gpu_power_cap_low", 3) is expected
    assert set(ward.active_checks()) <= {"gpu_power_cap_low"}


def test_a_low_limit_that_seldom_reduces_the_clocks_is_no_fault() -> None:
    """A limit must reduce the clocks for four fifths of half an hour that was read completely."""
    ward = ward_with(clock_event_active=CAPPED, **LOW)
    assert not ward.go_on(20 * MINUTE, every=30).verdicts
    ward.gpu(3, clock_event_active=NOTHING)
    ward.go_on(8 * MINUTE, every=15)
    ward.gpu(3, clock_event_active=CAPPED)
    assert not ward.go_on(20 * MINUTE, every=30).verdicts
    assert ward.go_on(10 * MINUTE, every=15).level("gpu_power_cap_low", 3) is Level.WARN
    ward.gpu(3, power_limit_watts=700.0)
    assert not ward.go_on(70).verdicts


@each_case(
    ("draw", "load", "expected"),
    [
        (10.0, 0.97, Level.WARN),
        (10.0, 0.0, Level.OK),
        (36.0, 0.97, Level.OK),
        (0.0, 0.97, Level.WARN),
        (860.0, 0.5, Level.OK),
        (900.0, 0.0, Level.WARN),
    ],
)
def test_implausible_power(draw: float, load: float, expected: Level) -> None:
    """Almost no power under load or more than any limit allows is implausible; little power when idle is normal."""
    ward = ward_with(power_watts=draw, utilization_ratio=load)
    assert ward.go_on(295).level("gpu_power_implausible", 3) is Level.OK
    assert ward.go_on(15).level("gpu_power_implausible", 3) is expected


def test_an_implausible_sensor_stays_a_fault_when_the_job_ends() -> None:
    """The verdict stays on an idle GPU and clears with a plausible value."""
    ward = ward_with(power_watts=1.0, utilization_ratio=0.97)
    ward.go_on(310)
    ward.gpu(3, utilization_ratio=0.0)
    assert ward.go_on(20 * MINUTE, every=30).level("gpu_power_implausible", 3) is Level.WARN
    ward.gpu(3, power_watts=80.0)
    assert not ward.go_on(70).verdicts
