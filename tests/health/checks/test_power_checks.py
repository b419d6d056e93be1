"""Power: brakes, limits that are too low, a draw that cannot be; a limit that is in use is no fault."""

from __future__ import annotations

from typing import Any

from each_case import each_case
from judging import Ward

from gpumon.health.verdict import Action, Level
from gpumon.model.gpu import CLOCK_EVENTS

MINUTE = 60.0
NOTHING = dict.fromkeys(CLOCK_EVENTS, 0.0)
CAPPED = NOTHING | {"sw_power_cap": 1.0}


def ward_with(**readings: Any) -> Ward:
    """GPU 3 has these readings."""
    ward = Ward()
    ward.gpu(3, **readings)
    return ward


def primary(ward: Ward) -> list[str]:
    return [one.check for one in ward.report.health.primary]


def test_a_power_brake_is_a_fault_after_two_minutes() -> None:
    """And over a minute after it was let go."""
    ward = ward_with(clock_event_active=NOTHING | {"hw_power_brake": 1.0})
    assert not ward.go_on(115).verdicts
    verdict = ward.go_on(15).verdict("gpu_power_brake", 3)
    assert verdict is not None
    assert (verdict.level, verdict.action) == (Level.FAIL, Action.INSPECT)
    assert primary(ward) == ["gpu_power_brake"]
    ward.gpu(3, clock_event_active=NOTHING)
    assert not ward.go_on(70).verdicts


def test_a_brake_that_comes_and_goes_shows_in_its_counter() -> None:
    """Every half minute, and never while anybody looks."""
    ward = Ward()
    ward.go_on(MINUTE)
    for times in range(6):
        ward.gpu(3, clock_event_seconds_total=NOTHING | {"hw_power_brake": 0.2 * times})
        ward.go_on(30)
    assert ward.level("gpu_power_brake", 3) is Level.FAIL
    assert len(ward.verdicts) == 1


def test_a_brake_of_a_moment_is_no_fault() -> None:
    """A supply that took over from another."""
    ward = ward_with(clock_event_active=NOTHING | {"hw_power_brake": 1.0})
    ward.go_on(10)
    ward.gpu(3, clock_event_active=NOTHING, clock_event_seconds_total=NOTHING | {"hw_power_brake": 9.0})
    assert not ward.go_on(30 * MINUTE, every=30).transitions


def test_a_gpu_that_cannot_be_read_is_braked_still() -> None:
    """Nobody can tell."""
    ward = ward_with(clock_event_active=NOTHING | {"hw_power_brake": 1.0})
    ward.go_on(130)
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
def test_only_a_limit_that_is_too_low_is_told(limits: dict[str, float], expected: Level) -> None:
    """Below what was asked for, or well below the board's; all of them are in use."""
    ward = ward_with(clock_event_active=CAPPED, power_watts=500.0, **limits)
    assert ward.go_on(40 * MINUTE, every=30).level("gpu_power_cap_low", 3) is expected
    assert set(ward.active_checks()) <= {"gpu_power_cap_low"}


def test_a_low_limit_that_seldom_holds_back_is_none_of_our_business() -> None:
    """Four fifths of half an hour, and all of it known; a job that loads its data now and then is held back as well."""
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
def test_power_that_cannot_be(draw: float, load: float, expected: Level) -> None:
    """Next to nothing under load, or more than any limit allows; idle, little is normal."""
    ward = ward_with(power_watts=draw, utilization_ratio=load)
    assert ward.go_on(295).level("gpu_power_implausible", 3) is Level.OK
    assert ward.go_on(15).level("gpu_power_implausible", 3) is expected


def test_a_sensor_that_is_wrong_stays_so_when_the_job_ends() -> None:
    """Idle, nobody can tell; a believable number clears it."""
    ward = ward_with(power_watts=1.0, utilization_ratio=0.97)
    ward.go_on(310)
    ward.gpu(3, utilization_ratio=0.0)
    assert ward.go_on(20 * MINUTE, every=30).level("gpu_power_implausible", 3) is Level.WARN
    ward.gpu(3, power_watts=80.0)
    assert not ward.go_on(70).verdicts
