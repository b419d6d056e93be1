"""TABLE: the fields of nvmlDeviceGetFieldValues as the simulated driver numbers and answers them.

Written from NVML's header by itself, not shared with the reader's table: a number misread there must show here.
"""

from __future__ import annotations

import ctypes
import struct
import time
from collections.abc import Callable, Mapping
from functools import cache
from operator import attrgetter
from typing import NamedTuple

from gpumon.sim.codes import Code, Refusal
from gpumon.sim.device import Device
from gpumon.sim.exports import POINTER, Version, device_function
from gpumon.sim.state import LINK_DOWN, Link

Read = Callable[[Device, int], float | None]
"""Device and scope -> value, None where it is not supported."""

UNSIGNED_INT, UNSIGNED_LONG_LONG, SIGNED_INT = 1, 3, 5
_VALUES = {
    UNSIGNED_INT: struct.Struct("<I4x"),
    UNSIGNED_LONG_LONG: struct.Struct("<Q"),
    SIGNED_INT: struct.Struct("<i4x"),
}
_ENTRY = struct.Struct("<IIqqiI8s")  # number, scope, timestamp, latency (µs), type, return code, value
_UNDEFINED = b"\xa5" * 8
"""What stands in the value of a field that failed: nothing that may be read."""
_LATENCY = 3
_ALL_LINKS = 0xFFFFFFFF
_MEMORY = 2
"""Scope of power: 0 the GPU, 1 the module, 2 its memory."""

_RENUMBERED: Version = (580, 82)


class Row(NamedTuple):
    """A field: on drivers from `since` up to and without `until`."""

    number: int
    name: str
    kind: int
    read: Read
    since: Version = ()
    until: Version = (10_000,)


def _plain(quantity: str, factor: float = 1) -> Read:
    take = attrgetter(quantity)

    def read(device: Device, _scope: int) -> float | None:
        value = take(device.state)
        return None if value is None else value * factor

    return read


def _total(*quantities: str) -> Read:
    def read(device: Device, _scope: int) -> float | None:
        values = [getattr(device.state, name) for name in quantities]
        return None if None in values else sum(values)

    return read


def _power(quantity: str, of_memory: str | None) -> Read:
    def read(device: Device, scope: int) -> float | None:
        name = {0: quantity, _MEMORY: of_memory}.get(scope)
        watts: float | None = None if name is None else getattr(device.state, name)
        return None if watts is None else watts * 1000

    return read


def _limit(threshold: int) -> Read:
    def read(device: Device, _scope: int) -> float | None:
        limits = device.profile.thermal_limits
        return None if limits is None else limits[threshold]

    return read


def _link(quantity: str) -> Read:
    def read(device: Device, scope: int) -> float | None:
        return getattr(_linked(device, scope), quantity)  # type: ignore[no-any-return]

    return read


def _linked(device: Device, scope: int) -> Link:
    links = device.state.links
    if not links:
        raise Refusal(Code.NOT_SUPPORTED)
    if scope >= len(links):
        raise Refusal(Code.INVALID_ARGUMENT)
    return links[scope]


def _traffic(quantity: str, overhead: float = 1) -> Read:
    def read(device: Device, scope: int) -> float | None:
        links = [link for link in device.state.links if link.state != LINK_DOWN]
        if scope != _ALL_LINKS:
            links = [link for link in [_linked(device, scope)] if link.state != LINK_DOWN]
        one = getattr(device.state, quantity)
        return None if one is None else one * overhead * len(links)

    return read


def _speed(device: Device, scope: int) -> float:
    return device.profile.link_speed if _linked(device, scope).state != LINK_DOWN else 0


def _version(device: Device, scope: int) -> float:
    _linked(device, scope)
    return device.profile.link_version


def _constant(value: float) -> Read:
    return lambda _device, _scope: value


_NANO = 1e9
ROWS = (
    Row(1, "ECC_CURRENT", UNSIGNED_INT, _plain("ecc_mode")),
    Row(2, "ECC_PENDING", UNSIGNED_INT, _plain("ecc_mode")),
    Row(3, "ECC_SBE_VOL_TOTAL", UNSIGNED_LONG_LONG, _total("ecc_corrected_sram", "ecc_corrected_dram")),
    Row(4, "ECC_DBE_VOL_TOTAL", UNSIGNED_LONG_LONG, _total("ecc_uncorrected_sram", "ecc_uncorrected_dram")),
    Row(5, "ECC_SBE_AGG_TOTAL", UNSIGNED_LONG_LONG, _total("ecc_corrected_sram", "ecc_corrected_dram")),
    Row(6, "ECC_DBE_AGG_TOTAL", UNSIGNED_LONG_LONG, _total("ecc_uncorrected_sram", "ecc_uncorrected_dram")),
    Row(9, "ECC_SBE_VOL_L2", UNSIGNED_LONG_LONG, _plain("ecc_corrected_sram")),
    Row(10, "ECC_DBE_VOL_L2", UNSIGNED_LONG_LONG, _plain("ecc_uncorrected_sram")),
    Row(11, "ECC_SBE_VOL_DEV", UNSIGNED_LONG_LONG, _plain("ecc_corrected_dram")),
    Row(12, "ECC_DBE_VOL_DEV", UNSIGNED_LONG_LONG, _plain("ecc_uncorrected_dram")),
    Row(20, "ECC_SBE_AGG_L2", UNSIGNED_LONG_LONG, _plain("ecc_corrected_sram")),
    Row(21, "ECC_DBE_AGG_L2", UNSIGNED_LONG_LONG, _plain("ecc_uncorrected_sram")),
    Row(22, "ECC_SBE_AGG_DEV", UNSIGNED_LONG_LONG, _plain("ecc_corrected_dram")),
    Row(23, "ECC_DBE_AGG_DEV", UNSIGNED_LONG_LONG, _plain("ecc_uncorrected_dram")),
    Row(29, "RETIRED_SBE", UNSIGNED_LONG_LONG, _plain("retired_corrected")),
    Row(30, "RETIRED_DBE", UNSIGNED_LONG_LONG, _plain("retired_uncorrected")),
    Row(31, "RETIRED_PENDING", UNSIGNED_INT, _plain("retired_pending")),
    Row(74, "PERF_POLICY_POWER", UNSIGNED_LONG_LONG, _plain("sw_power_cap_seconds", _NANO)),
    Row(76, "PERF_POLICY_SYNC_BOOST", UNSIGNED_LONG_LONG, _plain("sync_boost_seconds", _NANO)),
    Row(82, "MEMORY_TEMP", UNSIGNED_INT, _plain("memory_temperature")),
    Row(83, "TOTAL_ENERGY_CONSUMPTION", UNSIGNED_LONG_LONG, _plain("energy", 1000)),
    Row(91, "NVLINK_LINK_COUNT", UNSIGNED_INT, lambda device, _: len(device.state.links) or None),
    Row(94, "PCIE_REPLAY_COUNTER", UNSIGNED_INT, _plain("pcie_replays")),
    Row(138, "NVLINK_THROUGHPUT_DATA_TX", UNSIGNED_LONG_LONG, _traffic("nvlink_transmitted")),
    Row(139, "NVLINK_THROUGHPUT_DATA_RX", UNSIGNED_LONG_LONG, _traffic("nvlink_received")),
    Row(140, "NVLINK_THROUGHPUT_RAW_TX", UNSIGNED_LONG_LONG, _traffic("nvlink_transmitted", 1.06)),
    Row(141, "NVLINK_THROUGHPUT_RAW_RX", UNSIGNED_LONG_LONG, _traffic("nvlink_received", 1.06)),
    Row(142, "REMAPPED_COR", UNSIGNED_INT, _plain("remap_correctable")),
    Row(143, "REMAPPED_UNC", UNSIGNED_INT, _plain("remap_uncorrectable")),
    Row(144, "REMAPPED_PENDING", UNSIGNED_INT, _plain("remap_pending")),
    Row(145, "REMAPPED_FAILURE", UNSIGNED_INT, _plain("remap_failed")),
    Row(161, "NVLINK_ERROR_DL_REPLAY", UNSIGNED_LONG_LONG, _link("replay")),
    Row(162, "NVLINK_ERROR_DL_RECOVERY", UNSIGNED_LONG_LONG, _link("recovery")),
    Row(163, "NVLINK_ERROR_DL_CRC", UNSIGNED_LONG_LONG, _link("crc")),
    Row(164, "NVLINK_GET_SPEED", UNSIGNED_INT, _speed),
    Row(165, "NVLINK_GET_STATE", UNSIGNED_INT, _link("state")),
    Row(166, "NVLINK_GET_VERSION", UNSIGNED_INT, _version),
    Row(185, "POWER_AVERAGE", UNSIGNED_INT, _power("power_average", "memory_power"), since=(530,)),
    Row(186, "POWER_INSTANT", UNSIGNED_INT, _power("power_now", None), since=(530,)),
    Row(187, "POWER_MIN_LIMIT", UNSIGNED_INT, lambda device, _: device.profile.power_limit_min * 1000, since=(530,)),
    Row(188, "POWER_MAX_LIMIT", UNSIGNED_INT, lambda device, _: device.profile.power_limit * 1000, since=(530,)),
    Row(189, "POWER_DEFAULT_LIMIT", UNSIGNED_INT, lambda device, _: device.profile.power_limit * 1000, since=(530,)),
    Row(190, "POWER_CURRENT_LIMIT", UNSIGNED_INT, _plain("power_limit", 1000), since=(530,)),
    Row(191, "ENERGY", UNSIGNED_LONG_LONG, _plain("energy", 1000), since=(530,)),
    Row(192, "POWER_REQUESTED_LIMIT", UNSIGNED_INT, _plain("power_limit", 1000), since=(530,)),
    Row(193, "TEMPERATURE_SHUTDOWN_TLIMIT", SIGNED_INT, _limit(0)),
    Row(194, "TEMPERATURE_SLOWDOWN_TLIMIT", SIGNED_INT, _limit(1)),
    Row(195, "TEMPERATURE_MEM_MAX_TLIMIT", SIGNED_INT, _limit(2)),
    Row(196, "TEMPERATURE_GPU_MAX_TLIMIT", SIGNED_INT, _limit(3)),
    Row(197, "PCIE_COUNT_TX_BYTES", UNSIGNED_LONG_LONG, _plain("pcie_transmitted"), since=(555,)),
    Row(198, "PCIE_COUNT_RX_BYTES", UNSIGNED_LONG_LONG, _plain("pcie_received"), since=(555,)),
    Row(230, "GET_GPU_RECOVERY_ACTION", UNSIGNED_INT, _plain("recovery_action"), since=(570,)),
    # The numbers that moved. On the wrong driver they are a power-smoothing preset, with success.
    Row(251, "SW_THERM_SLOWDOWN", UNSIGNED_LONG_LONG, _plain("sw_thermal_seconds", _NANO), (575,), _RENUMBERED),
    Row(252, "HW_THERM_SLOWDOWN", UNSIGNED_LONG_LONG, _plain("hw_thermal_seconds", _NANO), (575,), _RENUMBERED),
    Row(253, "HW_POWER_BRAKE", UNSIGNED_LONG_LONG, _plain("hw_power_brake_seconds", _NANO), (575,), _RENUMBERED),
    Row(269, "PWR_SMOOTHING_PRESET", UNSIGNED_INT, _constant(100), (575,), _RENUMBERED),
    Row(270, "PWR_SMOOTHING_PRESET", UNSIGNED_INT, _constant(200), (575,), _RENUMBERED),
    Row(271, "PWR_SMOOTHING_PRESET", UNSIGNED_INT, _constant(300), (575,), _RENUMBERED),
    Row(251, "PWR_SMOOTHING_PRESET", UNSIGNED_INT, _constant(100), _RENUMBERED),
    Row(252, "PWR_SMOOTHING_PRESET", UNSIGNED_INT, _constant(200), _RENUMBERED),
    Row(253, "PWR_SMOOTHING_PRESET", UNSIGNED_INT, _constant(300), _RENUMBERED),
    Row(269, "SW_THERM_SLOWDOWN", UNSIGNED_LONG_LONG, _plain("sw_thermal_seconds", _NANO), _RENUMBERED),
    Row(270, "HW_THERM_SLOWDOWN", UNSIGNED_LONG_LONG, _plain("hw_thermal_seconds", _NANO), _RENUMBERED),
    Row(271, "HW_POWER_BRAKE", UNSIGNED_LONG_LONG, _plain("hw_power_brake_seconds", _NANO), _RENUMBERED),
)
NAMES = frozenset(row.name for row in ROWS)


@cache
def rows_of(driver: Version) -> Mapping[int, Row]:
    """The fields that this driver has, by number."""
    return {row.number: row for row in ROWS if row.since <= driver < row.until}


@device_function("nvmlDeviceGetFieldValues", ctypes.c_int, POINTER)
def field_values(device: Device, count: int, address: int | None) -> None:
    """Answer a batch in place; the call succeeds whatever its fields do."""
    if count <= 0 or not address:
        raise Refusal(Code.INVALID_ARGUMENT)
    batch = bytearray(ctypes.string_at(address, count * _ENTRY.size))
    rows, stamp = rows_of(device.node.driver()), time.time_ns() // 1000
    for at in range(0, len(batch), _ENTRY.size):
        number, scope, *_ = _ENTRY.unpack_from(batch, at)
        kind, code, value = _answer(rows.get(number), device, scope)
        _ENTRY.pack_into(batch, at, number, scope, stamp, _LATENCY, kind, code, value)
    ctypes.memmove(address, bytes(batch), len(batch))


def _answer(row: Row | None, device: Device, scope: int) -> tuple[int, int, bytes]:
    if row is None:
        return 0, Code.NOT_SUPPORTED, _UNDEFINED
    try:
        refused = device.state.field_codes.get(row.name)
        value = row.read(device, scope) if refused is None else None
    except Refusal as refusal:
        return 0, refusal.code, _UNDEFINED
    if value is None:
        return 0, refused or Code.NOT_SUPPORTED, _UNDEFINED
    return row.kind, Code.SUCCESS, _VALUES[row.kind].pack(round(value))
