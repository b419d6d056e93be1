"""Heat: raised on the right GPU after a while, not just under the limit, and gone when it is cool again."""

from __future__ import annotations

from typing import Any

import pytest
from each_case import each_case
from judging import Ward

from gpumon.health.policy import Policy
from gpumon.health.verdict import Action, Level

MINUTE = 60.0


def level(check: str, seconds: float = 10 * MINUTE, **readings: Any) -> Level:
    """Of GPU 3 after so long with these readings; no other GPU has a verdict."""
    ward = Ward()
    ward.gpu(3, **readings)
    ward.go_on(seconds)
    assert {verdict.device for verdict in ward.verdicts.values()} <= {ward.report.gpus[3].uuid}
    return ward.level(check, 3)


@each_case(
    ("product", "margin", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", 1.0, Level.OK),
        ("NVIDIA H100 80GB HBM3", 0.0, Level.WARN),
        ("NVIDIA H100 80GB HBM3", -2.0, Level.WARN),
        ("NVIDIA H100 80GB HBM3", -3.0, Level.FAIL),
        ("NVIDIA H200", -3.0, Level.FAIL),
        ("NVIDIA GB200", -3.0, Level.FAIL),
        ("NVIDIA L40S", -3.0, Level.FAIL),
        ("NVIDIA B200", -3.0, Level.WARN),
        ("NVIDIA B200", -4.0, Level.FAIL),
        ("NVIDIA X900", -30.0, Level.WARN),
    ],
)
def test_the_margin_counts_by_product(product: str, margin: float, expected: Level) -> None:
    """From 0 on the software slows down; below the product's offset the hardware does."""
    assert level("gpu_thermal_margin_low", name=product, thermal_margin_celsius=margin) is expected


def test_hardware_that_slows_down_for_heat_needs_no_row_of_its_product() -> None:
    """A product that is not known here says so itself."""
    events = {"hw_thermal": 1.0}
    found = level(
        "gpu_thermal_margin_low", 130, name="NVIDIA X900", thermal_margin_celsius=-1.0, clock_event_active=events
    )
    assert found is Level.FAIL


@pytest.mark.parametrize(
    ("core", "slowdown", "expected"),
    [(84.0, 87.0, Level.OK), (85.0, 87.0, Level.WARN), (87.0, 87.0, Level.FAIL), (99.0, None, Level.WARN)],
)
def test_without_a_margin_the_core_counts(core: float, slowdown: float | None, expected: Level) -> None:
    """As on Ampere and with old drivers."""
    readings: dict[str, Any] = {
        "thermal_margin_celsius": None,
        "temperature_celsius": core,
        "temperature_slowdown_celsius": slowdown,
    }
    assert level("gpu_thermal_margin_low", **readings) is expected


def test_heat_has_to_last_and_is_over_when_it_is_cool() -> None:
    """Two minutes, both ways."""
    ward = Ward()
    ward.gpu(3, thermal_margin_celsius=-1.0)
    assert not ward.go_on(115).verdicts
    assert ward.go_on(15).verdict("gpu_thermal_margin_low", 3)
    ward.gpu(3, thermal_margin_celsius=20.0)
    assert ward.go_on(110).verdict("gpu_thermal_margin_low", 3)
    assert not ward.go_on(20).verdicts


def test_a_hot_gpu_that_cannot_be_read_is_still_hot() -> None:
    """Nobody can tell, so nothing changes."""
    ward = Ward()
    ward.gpu(3, thermal_margin_celsius=-5.0)
    ward.go_on(130)
    ward.gpu(3, thermal_margin_celsius=None, temperature_celsius=None)
    assert ward.go_on(1800, every=30).level("gpu_thermal_margin_low", 3) is Level.FAIL


def test_an_operator_moves_the_limits_or_switches_them_off() -> None:
    """By name, in the configuration."""
    for thresholds, expected in (({"margin_celsius": 5.0}, Level.WARN), ({"margin_celsius": None}, Level.OK)):
        ward = Ward(policy=Policy(thresholds=thresholds))
        ward.gpu(3, thermal_margin_celsius=4.0)
        assert ward.go_on(130).level("gpu_thermal_margin_low", 3) is expected
    ward = Ward(policy=Policy(thresholds={"slowdown_margin_celsius": -8.0}))
    ward.gpu(3, thermal_margin_celsius=-7.0)
    assert ward.go_on(130).level("gpu_thermal_margin_low", 3) is Level.WARN


@pytest.mark.parametrize(
    ("now", "most", "expected"),
    [(95.0, 95.0, Level.OK), (96.0, 95.0, Level.WARN), (96.0, None, Level.WARN), (100.0, 105.0, Level.OK)],
)
def test_memory_may_be_as_hot_as_it_is_said_to_be(now: float, most: float | None, expected: Level) -> None:
    """The driver's maximum counts, where it tells one."""
    readings: dict[str, Any] = {"memory_temperature_celsius": now, "memory_temperature_max_celsius": most}
    assert level("gpu_memory_temperature_high", **readings) is expected


def test_memory_that_is_hot_for_a_moment_is_no_verdict() -> None:
    """It has to be so for five minutes."""
    assert level("gpu_memory_temperature_high", 290, memory_temperature_celsius=99.0) is Level.OK


def test_one_hot_gpu_has_one_primary_verdict() -> None:
    """Slow clocks and hot memory follow from it."""
    ward = Ward()
    ward.go_on(600, every=15)
    events = {"hw_slowdown": 1.0, "hw_thermal": 1.0, "sw_thermal": 1.0}
    ward.gpu(3, thermal_margin_celsius=-4.0, memory_temperature_celsius=99.0, clock_event_active=events)
    ward.go_on(900, every=15)
    assert ward.active_checks() == ["gpu_hw_slowdown", "gpu_memory_temperature_high", "gpu_thermal_margin_low"]
    (primary,) = ward.report.health.primary
    assert (primary.check, primary.level, primary.action) == ("gpu_thermal_margin_low", Level.FAIL, Action.INSPECT)


def test_what_is_worse_than_its_cause_is_told_as_well() -> None:
    """A warning must not hide hardware that slows down."""
    ward = Ward()
    ward.go_on(600, every=15)
    ward.gpu(3, memory_temperature_celsius=99.0, clock_event_active={"hw_slowdown": 1.0, "sw_thermal": 0.0})
    ward.go_on(900, every=15)
    assert {one.check for one in ward.report.health.primary} == {"gpu_hw_slowdown", "gpu_memory_temperature_high"}


def test_without_a_number_for_the_core_the_drivers_own_still_counts() -> None:
    """Null switches off what depends on that number, and not what the driver says."""
    hot: dict[str, Any] = {"thermal_margin_celsius": None, "temperature_celsius": 90.0}
    ward = Ward(policy=Policy(thresholds={"core_celsius": None}))
    ward.gpu(2, **hot, temperature_slowdown_celsius=None)
    ward.gpu(3, **hot, temperature_slowdown_celsius=87.0)
    ward.go_on(10 * MINUTE)
    assert ward.level("gpu_thermal_margin_low", 2) is Level.OK
    assert ward.level("gpu_thermal_margin_low", 3) is Level.FAIL


def test_a_gpu_above_its_limit_has_no_degrees_left() -> None:
    """The reason says how far above it is."""
    ward = Ward()
    ward.gpu(3, thermal_margin_celsius=-1.0)
    verdict = ward.go_on(130).verdict("gpu_thermal_margin_low", 3)
    assert verdict is not None
    assert verdict.reason == "It is 1 degree above its limit: it is being slowed down."


def test_what_swings_between_two_levels_is_the_milder_one() -> None:
    """As heat does about the temperature at which a GPU slows down: it waits for no level to stand still."""
    ward = Ward()
    for _ in range(30):
        ward.gpu(3, thermal_margin_celsius=-5.0)
        ward.go_on()
        ward.gpu(3, thermal_margin_celsius=-1.0)
        ward.go_on()
    assert ward.level("gpu_thermal_margin_low", 3) is Level.WARN
    ward.gpu(3, thermal_margin_celsius=-5.0)
    assert ward.go_on(3 * MINUTE).level("gpu_thermal_margin_low", 3) is Level.FAIL
    for _ in range(30):
        ward.gpu(3, thermal_margin_celsius=20.0)
        ward.go_on()
        ward.gpu(3, thermal_margin_celsius=-1.0)
        ward.go_on()
    assert ward.level("gpu_thermal_margin_low", 3) is Level.WARN
