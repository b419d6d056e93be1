"""Batches of field values: numbers by driver, types, scopes, and failures of single fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pynvml
import pytest
from simulated import simulated_node

ALL_LINKS = 0xFFFFFFFF


def values(handle: Any, *fields: Any) -> list[Any]:
    """Return for each field its return code if it failed, else its value by type."""
    members = {1: "uiVal", 3: "ullVal", 5: "siVal"}
    batch = pynvml.nvmlDeviceGetFieldValues(handle, list(fields))
    return [f"code {f.nvmlReturn}" if f.nvmlReturn else getattr(f.value, members[f.valueType]) for f in batch]


def test_fields_match_the_calls() -> None:
    """Energy, power, limit and memory temperature are the same as field and as call."""
    with simulated_node(now=100.0) as simulation:
        handle = simulation.handles()[0]
        assert values(handle, 83, 185, 190) == [
            pynvml.nvmlDeviceGetTotalEnergyConsumption(handle),
            pynvml.nvmlDeviceGetPowerUsage(handle),
            pynvml.nvmlDeviceGetEnforcedPowerLimit(handle),
        ]


def test_types_are_those_of_nvml() -> None:
    """Temperature offsets are signed, counters have 64 bits, and time and latency are set."""
    with simulated_node() as simulation:
        batch = pynvml.nvmlDeviceGetFieldValues(simulation.handles()[0], [193, 194, 83, 82])
        assert [f.valueType for f in batch] == [5, 5, 3, 1]
        assert [f.value.siVal for f in batch[:2]] == [-8, -2]
        assert all(f.timestamp > 0 and f.latencyUsec > 0 for f in batch)


def test_only_the_entry_of_an_invalid_link_fails() -> None:
    """A link number as scope that is too large is INVALID_ARGUMENT in its own entry only."""
    with simulated_node("a100x8") as simulation:
        handle = simulation.handles()[0]
        assert values(handle, 91, (165, 0), (165, 11), (165, 12), (161, 11)) == [12, 1, 1, "code 2", 0]
        total, one = values(handle, (138, ALL_LINKS), (138, 0))
        assert total == one * 12


def test_fields_that_a_t4_lacks_are_not_supported() -> None:
    """A T4 has no NVLink, row remapping, memory temperature, mean power or module power."""
    with simulated_node("t4x1") as simulation:
        handle = simulation.handles()[0]
        assert set(values(handle, 91, (165, 0), (138, ALL_LINKS), 142, 144, 82, 185, 193, 9999)) == {"code 3"}
        assert values(handle, 29, 31, 3) == [0, 0, 0]


def test_seldom_read_fields_are_those_of_a_real_h100() -> None:
    """Policies, rollovers, MIG abilities, atomics and inactive rows as a board with driver 580.159.04 returned them."""
    with simulated_node() as simulation:
        handle = simulation.handles()[0]
        assert values(handle, 95, 184, 199, 226, 227, 228, 229, 301, 302) == [0, 1, 1, 0, 0, 0, 0, 0, 0]
        assert [field.valueType for field in pynvml.nvmlDeviceGetFieldValues(handle, [80, 81])] == [3, 3]


def test_the_value_of_a_failed_field_is_undefined() -> None:
    """The value of a failed field is undefined, to detect a reader that ignores the return code."""
    with simulated_node("t4x1") as simulation:
        [failed] = pynvml.nvmlDeviceGetFieldValues(simulation.handles()[0], [82])
        assert failed.value.ullVal == 0xA5A5A5A5A5A5A5A5


@pytest.mark.parametrize(
    ("driver", "counters", "presets"),
    [
        ("575.57.08", (251, 252, 253), (269, 270, 271)),
        ("580.65.06", (251, 252, 253), (269, 270, 271)),
        ("580.82.07", (269, 270, 271), (251, 252, 253)),
        ("590.48.01", (269, 270, 271), (251, 252, 253)),
    ],
)
def test_slowdown_counters_have_new_numbers(
    tmp_path: Path, driver: str, counters: tuple[int, ...], presets: tuple[int, ...]
) -> None:
    """Three counters have other numbers from 580.82; their old numbers then succeed with other values on Blackwell.

    A real H100 with driver 580.159.04 returned that it does not support the old numbers.
    """
    scenario = f"""
driver_version: "{driver}"
gpus: {{0: {{set: {{sw_thermal_seconds: 1, hw_thermal_seconds: 2, hw_power_brake_seconds: 3}}}}}}
"""
    with simulated_node("b200x8", scenario=tmp_path / "s.yml", text=scenario) as simulation:
        handle = simulation.handles()[0]
        assert pynvml.nvmlSystemGetDriverVersion() == driver
        assert values(handle, *counters) == [1_000_000_000, 2_000_000_000, 3_000_000_000]
        assert values(handle, *presets) == [100, 200, 300]


def test_on_blackwell_ecc_totals_fail_beside_link_counters() -> None:
    """ECC totals are not supported in one batch with counters of NVLink 5; alone, or on Hopper, they are."""
    with simulated_node("b200x8") as simulation:
        handle = simulation.handles()[0]
        assert values(handle, 3, 4, (208, 0)) == ["code 3", "code 3", 0]
        assert values(handle, 3, 4, 91) == [0, 0, 18]
    with simulated_node() as simulation:
        assert values(simulation.handles()[0], 3, (161, 0)) == [0, 0]


def test_an_empty_batch_is_an_invalid_argument() -> None:
    with simulated_node() as simulation:
        handle = simulation.handles()[0]
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlDeviceGetFieldValues(handle, [])
        assert simulation.node.library.nvmlDeviceGetFieldValues(handle, 3, None) == 2


def test_one_field_can_be_made_to_fail(tmp_path: Path) -> None:
    """The failure of one field affects neither the call nor the other fields."""
    text = "gpus: {2: {fail_fields: {POWER_AVERAGE: 999}}}"
    with simulated_node(scenario=tmp_path / "s.yml", text=text) as simulation:
        handles = simulation.handles()
        assert values(handles[2], 185)[0] == "code 999"
        assert values(handles[2], 186)[0] > 0
        assert values(handles[1], 185)[0] > 0
