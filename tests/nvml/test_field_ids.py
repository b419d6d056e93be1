"""The numbers of fields follow the driver, not the bindings."""

from __future__ import annotations

import pytest

from gpumon.nvml.field_ids import field_ids, version


@pytest.mark.parametrize(
    ("driver", "hw_thermal"),
    [("570.172.08", None), ("575.57.08", 252), ("580.65.06", 252), ("580.82.07", 270), ("610.57.04", 270)],
)
def test_renumbered_fields_follow_the_driver(driver: str, hw_thermal: int | None) -> None:
    """The slowdown counters are 251 to 253 up to 580.65 and 269 to 271 from 580.82; before 575 there are none."""
    assert field_ids(driver).get("CLOCKS_EVENT_HW_THERMAL") == hw_thermal


def test_every_field_has_one_number_a_driver() -> None:
    """No driver gives two fields the same number."""
    for driver in ("470.10", "535.183.01", "570.10", "575.57", "580.65", "580.82", "610.57"):
        numbers = list(field_ids(driver).values())
        assert len(numbers) == len(set(numbers))


@pytest.mark.parametrize(("text", "parsed"), [("580.65.06", (580, 65, 6)), ("580", (580,)), ("545.23.beta", (545, 23))])
def test_versions_are_compared_as_numbers(text: str, parsed: tuple[int, ...]) -> None:
    """580.100 is later than 580.82."""
    assert version(text) == parsed
    assert version("580.100") > version("580.82")
