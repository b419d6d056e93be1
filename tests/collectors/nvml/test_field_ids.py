"""The numbers of fields follow the driver, not the bindings."""

from __future__ import annotations

import pynvml
import pytest
from each_case import each_case

from gpumon.collectors.nvml.fields import FIELD_IDS, field_ids, version


@each_case(
    ("driver", "hw_thermal"),
    [("570.172.08", None), ("575.57.08", 252), ("580.65.06", 252), ("580.82.07", 270), ("610.57.04", 270)],
)
def test_renumbered_fields_follow_the_driver(driver: str, hw_thermal: int | None) -> None:
    """The slowdown counters are fields 251 to 253 up to 580.65, 269 to 271 from 580.82, and absent before 575."""
    assert field_ids(driver).get("CLOCKS_EVENT_HW_THERMAL") == hw_thermal


def test_field_numbers_are_unique_per_driver() -> None:
    for driver in ("470.10", "535.183.01", "570.10", "575.57", "580.65", "580.82", "610.57"):
        numbers = list(field_ids(driver).values())
        assert len(numbers) == len(set(numbers))


def test_field_numbers_match_the_newest_bindings() -> None:
    newest = field_ids("9999")
    theirs = {name: getattr(pynvml, f"NVML_FI_DEV_{name}", None) for name in newest}
    numbered = {name: number for name, number in theirs.items() if number is not None}

    assert len(numbered) > 0.8 * len(newest)
    assert {name: newest[name] for name in numbered} == numbered


@each_case(
    ("driver", "first"),
    [
        ("535.183.01", "POWER_AVERAGE"),
        ("560.28.03", "NVLINK_COUNT_XMIT_BYTES"),
        ("570.86.10", "RECOVERY_ACTION"),
        ("575.51.02", "CLOCKS_EVENT_SW_POWER_CAP"),
    ],
)
def test_a_driver_is_not_queried_for_newer_fields(driver: str, first: str) -> None:
    """A field is not read from a driver older than its first version, where its number may mean another field."""
    since = next(row.since for row in FIELD_IDS if row.name == first)
    before = ".".join(str(part) for part in (since[0] - 1, *since[1:]))

    assert first in field_ids(driver)
    assert first not in field_ids(before)


@pytest.mark.parametrize(("text", "parsed"), [("580.65.06", (580, 65, 6)), ("580", (580,)), ("545.23.beta", (545, 23))])
def test_versions_are_compared_as_numbers(text: str, parsed: tuple[int, ...]) -> None:
    assert version(text) == parsed
    assert version("580.100") > version("580.82")
