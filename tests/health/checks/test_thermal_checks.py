"""Heat: raised on the right GPU after a while, not just under the limit, and gone when it is cool again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from each_case import each_case
from judging import Ward

from gpumon.health.policy import Policy
from gpumon.health.verdict import Action, Level

MINUTE = 60.0


def level(check: str, seconds: float = 10 * MINUTE, **readings: Any) -> Level:
    """Return the level of GPU 3 after these seconds with these readings; no other GPU has a verdict."""
    ward = Ward()
    ward.gpu(3, **readings)
    ward.go_on(seconds)
    assert {verdict.device for verdict in ward.verdicts.values()} <= {ward.report.gpus[3].uuid}
    return ward.level(check, 3)


HOT: Mapping[str, Any] = {"clock_event_active": {"sw_thermal": 1.0}}


@each_case(
    ("margin", "slowdown", "expected"),
    [
        (1.0, -2.0, Level.OK),
        (0.0, -2.0, Level.WARN),
        (-2.0, -2.0, Level.WARN),
        (-3.0, -2.0, Level.FAIL),
        (-3.0, -3.0, Level.WARN),
        (-4.0, -3.0, Level.FAIL),
        (-30.0, None, Level.WARN),
    ],
)
def test_the_thermal_margin_is_compared_with_the_gpus_own(
    margin: float, slowdown: float | None, expected: Level
) -> None:
    """At margin 0 the software slows the GPU down; below the margin that the driver reports, the hardware does."""
    readings: dict[str, Any] = {"thermal_margin_celsius": margin, "thermal_margin_slowdown_celsius": slowdown}
    assert level("gpu_thermal_margin_low", **readings, **HOT) is expected


@each_case(
    ("readings", "expected"),
    [
        ({}, Level.OK),
        ({"clock_event_active": None, "temperature_slowdown_celsius": None}, Level.OK),
        ({"temperature_celsius": 70.0}, Level.WARN),
        ({"temperature_celsius": None, "temperature_slowdown_celsius": None}, Level.WARN),
        ({"clock_event_active": {"sw_thermal": 1.0}}, Level.FAIL),
        ({"clock_event_active": {"hw_thermal": 1.0}}, Level.FAIL),
        ({"clock_event_active": None, "temperature_celsius": 87.0}, Level.FAIL),
    ],
    ids=["cool", "cool, no reasons", "warm", "unconfirmed", "software", "hardware", "core temperature"],
)
def test_the_thermal_margin_alone_is_no_failure(readings: dict[str, Any], expected: Level) -> None:
    """Some cool boards report a margin of 0 or less, which is ignored; a failure needs a clocks event or a hot core."""
    assert level("gpu_thermal_margin_low", thermal_margin_celsius=-5.0, **readings) is expected


def test_a_hardware_thermal_slowdown_needs_no_reported_margin() -> None:
    readings = {"thermal_margin_slowdown_celsius": None, "clock_event_active": {"hw_thermal": 1.0}}
    assert level("gpu_thermal_margin_low", 130, thermal_margin_celsius=-1.0, **readings) is Level.FAIL


@pytest.mark.parametrize(
    ("core", "slowdown", "expected"),
    [(85.0, 87.0, Level.OK), (86.0, 87.0, Level.WARN), (87.0, 87.0, Level.FAIL), (99.0, None, Level.WARN)],
)
def test_without_a_margin_the_core_temperature_is_used(core: float, slowdown: float | None, expected: Level) -> None:
    """Ampere GPUs and old drivers report no margin, so the core temperature is compared."""
    readings: dict[str, Any] = {
        "thermal_margin_celsius": None,
        "temperature_celsius": core,
        "temperature_slowdown_celsius": slowdown,
    }
    assert level("gpu_thermal_margin_low", **readings) is expected


def test_a_thermal_verdict_is_raised_after_two_minutes_and_cleared_after_ten() -> None:
    """A GPU must be hot for two minutes to raise the verdict, and cool for ten to clear it."""
    ward = Ward()
    ward.gpu(3, thermal_margin_celsius=-1.0, temperature_celsius=70.0)
    assert not ward.go_on(115).verdicts
    assert ward.go_on(15).verdict("gpu_thermal_margin_low", 3)
    ward.gpu(3, thermal_margin_celsius=20.0)
    assert ward.go_on(590).verdict("gpu_thermal_margin_low", 3)
    assert not ward.go_on(20).verdicts


def test_a_gpu_that_is_hot_every_five_minutes_is_one_fault() -> None:
    """Under a load that comes and goes the verdict is raised once: a person is not paged in each cycle."""
    ward = Ward()
    for hot in (True, False) * 6:
        slowed = {"sw_thermal": float(hot)}
        ward.gpu(3, thermal_margin_celsius=-5.0 if hot else 20.0, clock_event_active=slowed)
        ward.go_on(2.5 * MINUTE)
    assert len(ward.transitions) == 1
    assert ward.level("gpu_thermal_margin_low", 3) is Level.FAIL


def test_an_unreadable_gpu_keeps_its_thermal_verdict() -> None:
    ward = Ward()
    ward.gpu(3, thermal_margin_celsius=-5.0, **HOT)
    ward.go_on(130)
    ward.gpu(3, thermal_margin_celsius=None, temperature_celsius=None)
    assert ward.go_on(1800, every=30).level("gpu_thermal_margin_low", 3) is Level.FAIL


def test_thermal_limits_are_configurable() -> None:
    """The configuration moves each limit or disables it by name."""
    for thresholds, expected in (({"min_margin_celsius": 5.0}, Level.WARN), ({"min_margin_celsius": None}, Level.OK)):
        ward = Ward(policy=Policy(thresholds=thresholds))
        ward.gpu(3, thermal_margin_celsius=4.0)
        assert ward.go_on(130).level("gpu_thermal_margin_low", 3) is expected
    ward = Ward(policy=Policy(thresholds={"slowdown_margin_celsius": -8.0}))
    ward.gpu(3, thermal_margin_celsius=-7.0, **HOT)
    assert ward.go_on(130).level("gpu_thermal_margin_low", 3) is Level.WARN


@pytest.mark.parametrize(
    ("now", "most", "expected"),
    [(95.0, 95.0, Level.OK), (96.0, 95.0, Level.WARN), (96.0, None, Level.WARN), (100.0, 105.0, Level.OK)],
)
def test_the_memory_limit_is_the_drivers_maximum(now: float, most: float | None, expected: Level) -> None:
    readings: dict[str, Any] = {"memory_temperature_celsius": now, "memory_temperature_max_celsius": most}
    assert level("gpu_memory_temperature_high", **readings) is expected


def test_memory_must_be_hot_for_five_minutes() -> None:
    assert level("gpu_memory_temperature_high", 290, memory_temperature_celsius=99.0) is Level.OK


def test_one_hot_gpu_has_one_primary_verdict() -> None:
    """A hot GPU inhibits the verdicts of its slow clocks and hot memory."""
    ward = Ward()
    ward.go_on(600, every=15)
    events = {"hw_slowdown": 1.0, "hw_thermal": 1.0, "sw_thermal": 1.0}
    ward.gpu(3, thermal_margin_celsius=-4.0, memory_temperature_celsius=99.0, clock_event_active=events)
    ward.go_on(900, every=15)
    assert ward.active_checks() == ["gpu_hw_slowdown", "gpu_memory_temperature_high", "gpu_thermal_margin_low"]
    (primary,) = ward.report.health.primary
    assert (primary.check, primary.level, primary.action) == ("gpu_thermal_margin_low", Level.FAIL, Action.INSPECT)


def test_a_warning_does_not_inhibit_a_failure() -> None:
    ward = Ward()
    ward.go_on(600, every=15)
    ward.gpu(3, memory_temperature_celsius=99.0, clock_event_active={"hw_slowdown": 1.0, "sw_thermal": 0.0})
    ward.go_on(900, every=15)
    assert {each.check for each in ward.report.health.primary} == {"gpu_hw_slowdown", "gpu_memory_temperature_high"}


def test_configured_core_limit_applies_beside_the_margin() -> None:
    """Without a setting the margin alone decides: an H100 has 80 to 86 degrees under load by design."""
    for thresholds, core, expected in (
        ({}, 86.0, Level.OK),
        ({"max_core_celsius": 85.0}, 86.0, Level.WARN),
        ({"max_core_celsius": 85.0}, 85.0, Level.OK),
        ({"max_core_celsius": 85.0, "min_margin_celsius": None}, 86.0, Level.WARN),
    ):
        ward = Ward(policy=Policy(thresholds=thresholds))
        ward.gpu(3, thermal_margin_celsius=1.0, temperature_celsius=core)
        ward.go_on(10 * MINUTE)
        assert ward.level("gpu_thermal_margin_low", 3) is expected, (thresholds, core)


def test_disabling_the_core_limit_keeps_the_drivers_reasons() -> None:
    hot: dict[str, Any] = {"thermal_margin_celsius": None, "temperature_celsius": 90.0}
    ward = Ward(policy=Policy(thresholds={"max_core_celsius": None}))
    ward.gpu(2, **hot, temperature_slowdown_celsius=None)
    ward.gpu(3, **hot, temperature_slowdown_celsius=87.0)
    ward.go_on(10 * MINUTE)
    assert ward.level("gpu_thermal_margin_low", 2) is Level.OK
    assert ward.level("gpu_thermal_margin_low", 3) is Level.FAIL


UNCONFIRMED = "neither a clocks event reason nor its core temperature confirms that"


def test_the_reason_shows_the_degrees_above_the_limit() -> None:
    above = "It is 1 degree above its limit"
    for readings, expected in (
        ({**HOT, "temperature_celsius": 88.0}, f"{above} (core: 88 degrees): it is being slowed down."),
        (
            {"temperature_celsius": 70.0},
            f"{above} (core: 70 degrees) by its thermal margin; {UNCONFIRMED}.",
        ),
    ):
        ward = Ward()
        ward.gpu(3, thermal_margin_celsius=-1.0, **readings)
        verdict = ward.go_on(130).verdict("gpu_thermal_margin_low", 3)
        assert verdict is not None
        assert verdict.reason == expected


def test_the_reason_shows_the_degrees_below_the_limit() -> None:
    """With a larger configured margin, the hardware may slow down a GPU that is below its limit."""
    ward = Ward(policy=Policy(thresholds={"min_margin_celsius": 5.0}))
    ward.gpu(3, thermal_margin_celsius=2.0, temperature_celsius=88.0, clock_event_active={"hw_thermal": 1.0})
    verdict = ward.go_on(130).verdict("gpu_thermal_margin_low", 3)
    assert verdict is not None
    assert verdict.reason == "It is 2 degrees below its limit (core: 88 degrees): the hardware slows it down."


def test_readings_that_alternate_between_two_levels_raise_the_lower_level() -> None:
    ward = Ward()
    ward.gpu(3, **HOT)
    for _ in range(30):
        ward.gpu(3, thermal_margin_celsius=-5.0)
        ward.go_on()
        ward.gpu(3, thermal_margin_celsius=-1.0)
        ward.go_on()
    assert ward.level("gpu_thermal_margin_low", 3) is Level.WARN
    ward.gpu(3, thermal_margin_celsius=-5.0)
    assert ward.go_on(3 * MINUTE).level("gpu_thermal_margin_low", 3) is Level.FAIL
    for _ in range(80):
        ward.gpu(3, thermal_margin_celsius=20.0)
        ward.go_on()
        ward.gpu(3, thermal_margin_celsius=-1.0)
        ward.go_on()
    assert ward.level("gpu_thermal_margin_low", 3) is Level.WARN
