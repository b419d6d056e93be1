"""Invalid values from a driver or a failing GPU are absent, counted, and logged once."""

from __future__ import annotations

import ctypes
import logging
import struct
from pathlib import Path

import pytest
from each_case import each_case
from hypothesis import given
from hypothesis import strategies as st
from overlay import answering, overlaid
from polled import Poll, open_poll

from gpumon.collectors.nvml.plausible import PlausibilityFilter
from gpumon.model.gpu import Gpu
from gpumon.model.reading import Tier

DOUBLE, UINT, ULONGLONG = 0, 1, 3
MEMORY_TEMPERATURE, ENERGY, REPLAYS = 82, 83, 94
NOW = 1_700_000_000


def read(poll: Poll, number: int, kind: int, value: bytes, *, timestamp: int = NOW) -> Gpu:
    """Return GPU 0 of a poll in which the driver returns this value for the field."""
    with overlaid(
        {"nvmlDeviceGetFieldValues": answering(lambda n, _: (timestamp, kind, 0, value) if n == number else None)}
    ):
        gpu = poll.gpu(0).gpu
    assert gpu is not None
    return gpu


def plausible(row: str, value: float) -> float | None:
    """Return the value of a metric as the filter passes it on."""
    values = PlausibilityFilter("00000000:1B:00.0", lambda _: None)
    values.begin(Tier.FAST)
    passed: float | None = values.plausible(Tier.FAST, row, value)
    return passed


@each_case(
    ("row", "value", "expected"),
    [
        ("utilization_ratio", 3, False),
        ("utilization_ratio", -0.1, False),
        ("utilization_ratio", 1, True),
        ("temperature_celsius", 65535, False),
        ("thermal_margin_celsius", -4, True),
        ("power_watts", 4294967.295, False),
        ("clock_hertz", 4294967295e6, False),
        ("memory_used_bytes", 2.0**64 - 1, False),
        ("fan_speed_ratio", 1.05, True),
        ("energy_joules_total", 1e13, True),
        ("energy_joules_total", 2e16, False),
        ("nvlink_receive_bytes_total", 1e19, True),
        ("energy_joules_total", -1, False),
        ("nvlink_speed_bytes_per_second", 26562e6, True),
        ("clock_hertz", 65535e6, False),
        ("mig_mode", 2, False),
        ("performance_state", 65535, False),
        ("pcie_link_width_max", 16, True),
        ("recovery_action", 7, True),
        ("recovery_action", 65535, False),
    ],
)
def test_bounds_follow_the_unit(row: str, value: float, expected: bool) -> None:  # noqa: FBT001 - a column
    """The unit, the last word of a row's name, defines its bounds."""
    assert (plausible(row, value) == value) is expected


@given(st.sampled_from(["power_watts", "utilization_ratio", "pcie_replays_total"]))
def test_no_row_is_nan_or_infinite(row: str) -> None:
    """No row is NaN or infinite, because such a sample would make every sum invalid."""
    assert all(plausible(row, float(value)) is None for value in ("nan", "inf", "-inf"))


def test_only_the_ratio_out_of_bounds_is_absent() -> None:
    """An invalid row is absent and counted; other rows of the same call remain."""
    with open_poll() as poll, overlaid({"nvmlDeviceGetUtilizationRates": _utilization(300, 40)}):
        snapshot = poll.poll()

    gpu = snapshot.gpus[0].gpu
    assert gpu is not None
    assert (gpu.utilization_ratio, gpu.memory_utilization_ratio) == (None, 0.4)
    assert snapshot.errors == {"fast,Implausible": 8.0}


def _utilization(gpu: int, memory: int) -> object:
    def rates(_handle: int, out: int) -> int:
        ctypes.memmove(out, struct.pack("<II", gpu, memory), 8)
        return 0

    return rates


def test_a_temperature_threshold_of_zero_is_absent() -> None:
    """A threshold of 0 is none: every GPU would exceed it."""

    def zero(_handle: int, _threshold: int, out: int) -> int:
        ctypes.memset(out, 0, 4)
        return 0

    with open_poll() as poll, overlaid({"nvmlDeviceGetTemperatureThreshold": zero}):
        gpu = poll.poll().gpus[0].gpu

    assert gpu is not None
    assert gpu.temperature_celsius is not None
    assert (gpu.temperature_slowdown_celsius, gpu.memory_temperature_max_celsius) == (None, None)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (UINT, struct.pack("<I4x", 65535)),
        (UINT, struct.pack("<I4x", 0xFFFFFFFF)),
        (DOUBLE, struct.pack("<I4x", 43)),
        (99, struct.pack("<I4x", 43)),
    ],
    ids=["65535", "all ones", "a double", "a type that does not exist"],
)
def test_an_invalid_field_is_absent(kind: int, value: bytes) -> None:
    """A value out of bounds, NVML's "no value", or an unexpected type makes the field absent."""
    with open_poll() as poll:
        assert read(poll, MEMORY_TEMPERATURE, kind, value).memory_temperature_celsius is None


def test_a_mask_of_all_ones_is_ignored(tmp_path: Path) -> None:
    """A clock event mask of all ones, from a failing GPU, gives no reason."""
    with open_poll(text="gpus: {1: {garbage: {clock_events: -1}}}", folder=tmp_path) as poll:
        snapshot = poll.poll()

    assert snapshot.gpus[1].gpu is not None
    assert snapshot.gpus[1].gpu.clock_event_active is None
    assert snapshot.errors == {"fast,Implausible": 1.0}


def test_an_invalid_mode_is_ignored(tmp_path: Path) -> None:
    """A MIG mode of 77 is absent, and the GPU is read as before."""
    with open_poll(text="busy: true\ngpus: {1: {garbage: {mig_mode: 77}}}", folder=tmp_path) as poll:
        gpu = poll.poll().gpus[1].gpu

    assert gpu is not None
    assert gpu.mig_mode is None
    assert gpu.utilization_ratio is not None
    assert gpu.nvlinks == 18


@pytest.mark.parametrize("ones", [struct.pack("<I4x", 0xFFFFFFFF), struct.pack("<Q", 2**64 - 1)])
def test_a_counter_of_all_ones_is_absent(ones: bytes) -> None:
    with open_poll() as poll:
        kind = UINT if ones[4:] == bytes(4) else ULONGLONG
        assert read(poll, REPLAYS, kind, ones).pcie_replays_total is None


def test_an_empty_success_is_absent_and_not_an_error() -> None:
    """Success with zero time and type, as some drivers return with ECC off, is absent and not an error."""
    with open_poll() as poll:
        poll.poll()
        gpu = read(poll, ENERGY, DOUBLE, bytes(8), timestamp=0)
        errors = poll.poll().errors

    assert gpu.energy_joules_total is None
    assert errors == {}


def test_an_invalid_total_gives_no_difference() -> None:
    """If the total of SRAM errors is invalid, the difference to a part of it is absent and not 0."""
    with open_poll() as poll:
        gpu = read(poll, 4, ULONGLONG, struct.pack("<Q", 2**64 - 1))

    assert set(gpu.ecc_errors_total or {}) == {"corrected,dram", "corrected,sram", "uncorrected,dram"}


def test_invalid_values_are_logged_once_at_start_and_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_poll(text="gpus: {3: {set: {temperature: 255}}}", folder=tmp_path) as poll, caplog.at_level(logging.INFO):
        for _ in range(3):
            poll.poll_all_tiers()
        poll.simulation.edit("")
        poll.poll_all_tiers()

    records = [record for record in caplog.records if getattr(record, "row", "") == "temperature_celsius"]
    assert [record.levelname for record in records] == ["WARNING", "INFO"]
