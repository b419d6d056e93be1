"""TABLE: the fields of nvmlDeviceGetFieldValues, with the ids and values that the simulated driver has for them.

It was written from NVML's header, independently of the table in collectors/nvml/fields.py, so that tests detect a
wrong id there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from operator import attrgetter
from typing import NamedTuple

from gpumon_sim.board import BLACKWELL
from gpumon_sim.codes import Code, Refusal
from gpumon_sim.exports import Version
from gpumon_sim.quantities import LINK_DOWN, Link
from gpumon_sim.sim_gpu import SimGpu

Read = Callable[[SimGpu, int], float | None]
"""Function that returns the value of a field for a device and a scope (such as a link number); None if the device does
not support the field.
"""

TYPES = {
    "double": 0,
    "unsigned_int": 1,
    "unsigned_long": 2,
    "unsigned_long_long": 3,
    "signed_long_long": 4,
    "signed_int": 5,
    "unsigned_short": 6,
}
"""NVML's numbers of value types, by name."""
_UINT, _ULL, _INT = TYPES["unsigned_int"], TYPES["unsigned_long_long"], TYPES["signed_int"]
_ALL_LINKS = 0xFFFFFFFF
_GPU, _MODULE, _MEMORY = 0, 1, 2
"""NVML's scopes of the power fields: the GPU, the module, the GPU's memory."""
_HEADER = 1.06
"""Bytes of raw link traffic for each byte of payload."""
_PACKET = 256
"""Payload bytes of an NVLink 5 packet."""


class FieldValueRow(NamedTuple):
    """A field of the table: its id `number`, its name, NVML's value type `kind`, and the function that reads it.

    Driver versions from `since` on, but before `until`, have the field.
    """

    number: int
    name: str
    kind: int
    read: Read
    since: Version = ()
    until: Version = (10_000,)


def _quantity(quantity: str, factor: float = 1) -> Read:
    take = attrgetter(quantity)

    def read(device: SimGpu, _scope: int) -> float | None:
        value = take(device.state)
        return None if value is None else value * factor

    return read


def _thermal(device: SimGpu, _scope: int) -> float | None:
    """Return the nanoseconds of thermal slowdown: the larger of those by software and by hardware, which overlap.

    Return None if one of them is not supported.
    """
    times = (device.state.sw_thermal_seconds, device.state.hw_thermal_seconds)
    return None if None in times else _NANO * max(time for time in times if time is not None)


def _ecc(*quantities: str) -> Read:
    def read(device: SimGpu, _scope: int) -> float | None:
        values = [getattr(device.state, f"ecc_{name}") for name in quantities]
        return None if None in values or not device.state.ecc_mode else sum(values)

    return read


def _power(**quantities: str) -> Read:
    def read(device: SimGpu, scope: int) -> float | None:
        name = {_GPU: "gpu", _MODULE: "module", _MEMORY: "memory"}.get(scope)
        watts: float | None = getattr(device.state, quantities[name]) if name in quantities else None
        return None if watts is None else watts * 1000

    return read


def _limit(threshold: int) -> Read:
    def read(device: SimGpu, _scope: int) -> float | None:
        limits = device.board.thermal_limits
        return None if limits is None else limits[threshold]

    return read


def _board(watts: str) -> Read:
    return lambda device, scope: getattr(device.board, watts) * 1000 if scope == _GPU else None


def _resetless_mig(device: SimGpu, _scope: int) -> float | None:
    return int(device.board.architecture >= 9) if device.board.mig_profiles else None


def _inactive_rows(device: SimGpu, _scope: int) -> float | None:
    return None if device.state.remap_pending is None else 0


# NVLink


def _simulated_link(device: SimGpu, scope: int) -> Link:
    links = device.state.links
    if not links:
        raise Refusal(Code.NOT_SUPPORTED)
    if scope >= len(links):
        raise Refusal(Code.INVALID_ARGUMENT)
    return links[scope]


def _link(quantity: str) -> Read:
    return lambda device, scope: getattr(_simulated_link(device, scope), quantity)


def _until_hopper(read: Read) -> Read:
    return lambda device, scope: None if device.board.nvlink5 else read(device, scope)


def _nvlink5(read: Read) -> Read:
    return lambda device, scope: read(device, scope) if device.board.nvlink5 else None


def _traffic(quantity: str, factor: float = 1) -> Read:
    """Return a function that reads the traffic of one NVLink, whose number is the scope, or the sum of all links.

    The traffic of a link is the GPU's quantity `quantity` in KiB, or the value that the scenario sets for the link,
    multiplied by `factor`; 0 if the link is down.
    """

    def read(device: SimGpu, scope: int) -> float | None:
        links = device.state.links if scope == _ALL_LINKS else (_simulated_link(device, scope),)
        usual: float | None = getattr(device.state, quantity)
        if usual is None:
            return None
        up = (link for link in links if link.state != LINK_DOWN)
        return factor * sum(usual if link.carried is None else link.carried for link in up)

    return read


def _counter(*quantities: str) -> Read:
    """Return a function that sums the given counters of the link with the number `scope`, or of all links.

    It returns None on boards without NVLink 5.
    """

    def read(device: SimGpu, scope: int) -> float | None:
        links = device.state.links if scope == _ALL_LINKS else (_simulated_link(device, scope),)
        counts: list[float] = [getattr(link, name) for link in links for name in quantities]
        return sum(counts)

    return _nvlink5(read)


def _error_rate(quantity: str) -> Read:
    return _nvlink5(lambda device, scope: pack_bit_error_rate(getattr(_simulated_link(device, scope), quantity)))


def pack_bit_error_rate(ratio: float) -> int:
    """Return a bit error rate as NVML encodes it: mantissa in bits 8 to 11, negative exponent of 10 in bits 0 to 7."""
    if ratio <= 0:
        return 15 << 8 | 255  # practically none: 15e-255
    exponent = min(255, math.floor(math.log10(15 / ratio) + 1e-9))
    return round(ratio * 10.0**exponent) << 8 | exponent


def _speed(device: SimGpu, scope: int) -> float:
    link = _simulated_link(device, scope)
    if link.state == LINK_DOWN:
        return 0
    return device.board.link_speed if link.speed is None else link.speed


def _version(device: SimGpu, scope: int) -> float:
    _simulated_link(device, scope)
    return device.board.link_version


# Widths of counters, from NVIDIA's kernel module (ctrl2080bus.h): NV2080_CTRL_BUS_GET_PEX_COUNTERS_PARAMS for errors,
# NV2080_CTRL_BUS_GET_PEX_UTIL_COUNTERS_PARAMS for bytes. It is our assumption that 8-bit counters stop.


def _stops(bits: int, quantity: str) -> Read:
    """Return a function that reads a quantity as a counter of `bits` bits that stops at its maximum."""
    read = _quantity(quantity)
    return lambda device, scope: None if (value := read(device, scope)) is None else min(value, 2**bits - 1)


def _wraps(bits: int, quantity: str) -> Read:
    """Return a function that reads a quantity as a counter of `bits` bits that wraps to 0 above its maximum."""
    read = _quantity(quantity)
    return lambda device, scope: None if (value := read(device, scope)) is None else value % 2**bits


# Chip-to-chip links


def _c2c(device: SimGpu, scope: int) -> int:
    links = device.state.c2c_links
    if not links:
        raise Refusal(Code.NOT_SUPPORTED)
    if scope >= len(links):
        raise Refusal(Code.INVALID_ARGUMENT)
    return links[scope]


def _constant(value: float) -> Read:
    return lambda _device, _scope: value


def _preset(value: float) -> Read:
    """Return a function that reads a preset of power smoothing, which boards before Blackwell do not have."""
    return lambda device, _scope: value if device.board.architecture >= BLACKWELL else None


_NANO = 1e9
_R530, _R535, _R555, _R560, _R570, _R575 = (530,), (535,), (555,), (560,), (570,), (575,)
_RENUMBERED: Version = (580, 82)
_TRANSMITTED, _RECEIVED = "nvlink_transmitted", "nvlink_received"
ROWS = (
    FieldValueRow(1, "ECC_CURRENT", _UINT, _quantity("ecc_mode")),
    FieldValueRow(2, "ECC_PENDING", _UINT, _quantity("ecc_pending")),
    FieldValueRow(3, "ECC_SBE_VOL_TOTAL", _ULL, _ecc("corrected_sram", "corrected_dram")),
    FieldValueRow(4, "ECC_DBE_VOL_TOTAL", _ULL, _ecc("uncorrected_sram", "uncorrected_dram")),
    FieldValueRow(5, "ECC_SBE_AGG_TOTAL", _ULL, _ecc("lifetime_corrected_sram", "lifetime_corrected_dram")),
    FieldValueRow(6, "ECC_DBE_AGG_TOTAL", _ULL, _ecc("lifetime_uncorrected_sram", "lifetime_uncorrected_dram")),
    FieldValueRow(9, "ECC_SBE_VOL_L2", _ULL, _ecc("corrected_sram")),
    FieldValueRow(10, "ECC_DBE_VOL_L2", _ULL, _ecc("uncorrected_sram")),
    FieldValueRow(11, "ECC_SBE_VOL_DEV", _ULL, _ecc("corrected_dram")),
    FieldValueRow(12, "ECC_DBE_VOL_DEV", _ULL, _ecc("uncorrected_dram")),
    FieldValueRow(20, "ECC_SBE_AGG_L2", _ULL, _ecc("lifetime_corrected_sram")),
    FieldValueRow(21, "ECC_DBE_AGG_L2", _ULL, _ecc("lifetime_uncorrected_sram")),
    FieldValueRow(22, "ECC_SBE_AGG_DEV", _ULL, _ecc("lifetime_corrected_dram")),
    FieldValueRow(23, "ECC_DBE_AGG_DEV", _ULL, _ecc("lifetime_uncorrected_dram")),
    FieldValueRow(29, "RETIRED_SBE", _ULL, _quantity("retired_corrected")),
    FieldValueRow(30, "RETIRED_DBE", _ULL, _quantity("retired_uncorrected")),
    FieldValueRow(31, "RETIRED_PENDING", _UINT, _quantity("retired_pending")),
    FieldValueRow(74, "PERF_POLICY_POWER", _ULL, _quantity("sw_power_cap_seconds", _NANO)),
    FieldValueRow(75, "PERF_POLICY_THERMAL", _ULL, _thermal),
    FieldValueRow(76, "PERF_POLICY_SYNC_BOOST", _ULL, _quantity("sync_boost_seconds", _NANO)),
    FieldValueRow(77, "PERF_POLICY_BOARD_LIMIT", _ULL, _constant(0)),
    FieldValueRow(78, "PERF_POLICY_LOW_UTILIZATION", _ULL, _constant(0)),
    FieldValueRow(79, "PERF_POLICY_RELIABILITY", _ULL, _constant(0)),
    # 80 to 302 as an H100 80GB HBM3 with driver 580.159.04 returns them: tests/captures/h100x1-580.159.04-idle.capture
    FieldValueRow(80, "PERF_POLICY_TOTAL_APP_CLOCKS", _ULL, _constant(0)),
    FieldValueRow(81, "PERF_POLICY_TOTAL_BASE_CLOCKS", _ULL, _constant(0)),
    FieldValueRow(82, "MEMORY_TEMP", _UINT, _quantity("memory_temperature")),
    FieldValueRow(83, "TOTAL_ENERGY_CONSUMPTION", _ULL, _quantity("energy", 1000)),
    FieldValueRow(91, "NVLINK_LINK_COUNT", _UINT, lambda device, _: len(device.state.links) or None),
    FieldValueRow(94, "PCIE_REPLAY_COUNTER", _UINT, _wraps(16, "pcie_replays")),
    FieldValueRow(95, "PCIE_REPLAY_ROLLOVER_COUNTER", _UINT, _constant(0)),
    FieldValueRow(138, "NVLINK_THROUGHPUT_DATA_TX", _ULL, _until_hopper(_traffic(_TRANSMITTED))),
    FieldValueRow(139, "NVLINK_THROUGHPUT_DATA_RX", _ULL, _until_hopper(_traffic(_RECEIVED))),
    FieldValueRow(140, "NVLINK_THROUGHPUT_RAW_TX", _ULL, _until_hopper(_traffic(_TRANSMITTED, _HEADER))),
    FieldValueRow(141, "NVLINK_THROUGHPUT_RAW_RX", _ULL, _until_hopper(_traffic(_RECEIVED, _HEADER))),
    FieldValueRow(142, "REMAPPED_COR", _UINT, _wraps(32, "remap_correctable")),
    FieldValueRow(143, "REMAPPED_UNC", _UINT, _wraps(32, "remap_uncorrectable")),
    FieldValueRow(144, "REMAPPED_PENDING", _UINT, _quantity("remap_pending")),
    FieldValueRow(145, "REMAPPED_FAILURE", _UINT, _quantity("remap_failed")),
    FieldValueRow(161, "NVLINK_ERROR_DL_REPLAY", _ULL, _until_hopper(_link("replay"))),
    FieldValueRow(162, "NVLINK_ERROR_DL_RECOVERY", _ULL, _until_hopper(_link("recovery"))),
    FieldValueRow(163, "NVLINK_ERROR_DL_CRC", _ULL, _until_hopper(_link("crc"))),
    FieldValueRow(164, "NVLINK_GET_SPEED", _UINT, _speed, _R535),
    FieldValueRow(165, "NVLINK_GET_STATE", _UINT, _link("state")),
    FieldValueRow(166, "NVLINK_GET_VERSION", _UINT, _version),
    FieldValueRow(169, "PCIE_L0_TO_RECOVERY_COUNTER", _UINT, _wraps(16, "pcie_errors_l0_to_recovery"), _R535),
    FieldValueRow(170, "C2C_LINK_COUNT", _UINT, lambda device, _: len(device.state.c2c_links) or None, _R535),
    FieldValueRow(171, "C2C_LINK_GET_STATUS", _UINT, _c2c, _R535),
    FieldValueRow(172, "C2C_LINK_GET_MAX_BW", _UINT, lambda device, n: device.board.c2c_speed * _c2c(device, n), _R535),
    FieldValueRow(173, "PCIE_COUNT_CORRECTABLE_ERRORS", _UINT, _wraps(16, "pcie_errors_correctable"), _R535),
    FieldValueRow(174, "PCIE_COUNT_NAKS_RECEIVED", _UINT, _wraps(16, "pcie_errors_naks_received"), _R535),
    FieldValueRow(175, "PCIE_COUNT_RECEIVER_ERROR", _UINT, _wraps(16, "pcie_errors_receiver"), _R535),
    FieldValueRow(176, "PCIE_COUNT_BAD_TLP", _UINT, _wraps(16, "pcie_errors_bad_tlp"), _R535),
    FieldValueRow(177, "PCIE_COUNT_NAKS_SENT", _UINT, _wraps(16, "pcie_errors_naks_sent"), _R535),
    FieldValueRow(178, "PCIE_COUNT_BAD_DLLP", _UINT, _wraps(16, "pcie_errors_bad_dllp"), _R535),
    FieldValueRow(179, "PCIE_COUNT_NON_FATAL_ERROR", _UINT, _stops(8, "pcie_errors_non_fatal"), _R535),
    FieldValueRow(180, "PCIE_COUNT_FATAL_ERROR", _UINT, _stops(8, "pcie_errors_fatal"), _R535),
    FieldValueRow(181, "PCIE_COUNT_UNSUPPORTED_REQ", _UINT, _stops(8, "pcie_errors_unsupported_request"), _R535),
    FieldValueRow(182, "PCIE_COUNT_LCRC_ERROR", _UINT, _wraps(16, "pcie_errors_lcrc"), _R535),
    FieldValueRow(183, "PCIE_COUNT_LANE_ERROR", _UINT, _wraps(16, "pcie_errors_lane"), _R535),
    FieldValueRow(184, "IS_RESETLESS_MIG_SUPPORTED", _UINT, _resetless_mig, _R535),
    FieldValueRow(
        185, "POWER_AVERAGE", _UINT, _power(gpu="power_average", module="module_power", memory="memory_power"), _R530
    ),
    FieldValueRow(186, "POWER_INSTANT", _UINT, _power(gpu="power_now", module="module_power"), _R530),
    FieldValueRow(187, "POWER_MIN_LIMIT", _UINT, _board("power_limit_min"), _R530),
    FieldValueRow(188, "POWER_MAX_LIMIT", _UINT, _board("power_limit"), _R530),
    FieldValueRow(189, "POWER_DEFAULT_LIMIT", _UINT, _board("power_limit"), _R530),
    FieldValueRow(190, "POWER_CURRENT_LIMIT", _UINT, _power(gpu="power_limit"), _R530),
    FieldValueRow(191, "ENERGY", _ULL, _quantity("energy", 1000), _R530),
    FieldValueRow(192, "POWER_REQUESTED_LIMIT", _UINT, _power(gpu="power_limit_requested"), _R530),
    FieldValueRow(193, "TEMPERATURE_SHUTDOWN_TLIMIT", _INT, _limit(0)),
    FieldValueRow(194, "TEMPERATURE_SLOWDOWN_TLIMIT", _INT, _limit(1)),
    FieldValueRow(195, "TEMPERATURE_MEM_MAX_TLIMIT", _INT, _limit(2)),
    FieldValueRow(196, "TEMPERATURE_GPU_MAX_TLIMIT", _INT, _limit(3)),
    FieldValueRow(197, "PCIE_COUNT_TX_BYTES", _ULL, _wraps(32, "pcie_transmitted"), _R555),
    FieldValueRow(198, "PCIE_COUNT_RX_BYTES", _ULL, _wraps(32, "pcie_received"), _R555),
    FieldValueRow(199, "IS_MIG_MODE_INDEPENDENT_MIG_QUERY_CAPABLE", _UINT, _resetless_mig, _R555),
    FieldValueRow(201, "NVLINK_COUNT_XMIT_PACKETS", _ULL, _nvlink5(_traffic(_TRANSMITTED, 1024 / _PACKET)), _R560),
    FieldValueRow(202, "NVLINK_COUNT_XMIT_BYTES", _ULL, _nvlink5(_traffic(_TRANSMITTED, 1024)), _R560),
    FieldValueRow(203, "NVLINK_COUNT_RCV_PACKETS", _ULL, _nvlink5(_traffic(_RECEIVED, 1024 / _PACKET)), _R560),
    FieldValueRow(204, "NVLINK_COUNT_RCV_BYTES", _ULL, _nvlink5(_traffic(_RECEIVED, 1024)), _R560),
    FieldValueRow(206, "NVLINK_COUNT_MALFORMED_PACKET_ERRORS", _ULL, _counter("malformed_packet"), _R560),
    FieldValueRow(207, "NVLINK_COUNT_BUFFER_OVERRUN_ERRORS", _ULL, _counter("buffer_overrun"), _R560),
    FieldValueRow(208, "NVLINK_COUNT_RCV_ERRORS", _ULL, _counter("receive"), _R560),
    FieldValueRow(209, "NVLINK_COUNT_RCV_REMOTE_ERRORS", _ULL, _counter("receive_remote"), _R560),
    FieldValueRow(210, "NVLINK_COUNT_RCV_GENERAL_ERRORS", _ULL, _counter("receive_general"), _R560),
    FieldValueRow(211, "NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS", _ULL, _counter("local_link_integrity"), _R560),
    FieldValueRow(212, "NVLINK_COUNT_XMIT_DISCARDS", _ULL, _counter("transmit_discard"), _R560),
    FieldValueRow(213, "NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS", _ULL, _counter("recovered"), _R560),
    FieldValueRow(214, "NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS", _ULL, _counter("recovery_failed"), _R560),
    FieldValueRow(215, "NVLINK_COUNT_LINK_RECOVERY_EVENTS", _ULL, _counter("recovered", "recovery_failed"), _R560),
    FieldValueRow(219, "NVLINK_COUNT_EFFECTIVE_ERRORS", _ULL, _counter("effective"), _R560),
    FieldValueRow(220, "NVLINK_COUNT_EFFECTIVE_BER", _ULL, _error_rate("effective_ber"), _R560),
    FieldValueRow(221, "NVLINK_COUNT_SYMBOL_ERRORS", _ULL, _counter("symbol"), _R560),
    FieldValueRow(222, "NVLINK_COUNT_SYMBOL_BER", _ULL, _error_rate("symbol_ber"), _R560),
    FieldValueRow(226, "RESET_STATUS", _UINT, _constant(0), _R570),
    FieldValueRow(227, "DRAIN_AND_RESET_STATUS", _UINT, _constant(0), _R570),
    FieldValueRow(228, "PCIE_OUTBOUND_ATOMICS_MASK", _UINT, _constant(0), _R570),
    FieldValueRow(229, "PCIE_INBOUND_ATOMICS_MASK", _UINT, _constant(0), _R570),
    FieldValueRow(230, "GET_GPU_RECOVERY_ACTION", _UINT, _quantity("recovery_action"), _R570),
    FieldValueRow(301, "REMAPPED_ROWS_COR_INACTIVE", _ULL, _inactive_rows, _RENUMBERED),
    FieldValueRow(302, "REMAPPED_ROWS_UNC_INACTIVE", _ULL, _inactive_rows, _RENUMBERED),
    FieldValueRow(306, "BANK_REMAPPER_HISTOGRAM_NONE", _UINT, _quantity("repair_banks_spent"), (615,)),
    FieldValueRow(307, "PENDING_BANK_REMAPPING", _UINT, _quantity("repair_bank"), (615,)),
    # Driver 580.82 renumbered three fields. An id that a driver does not use for them is a power-smoothing preset.
    FieldValueRow(251, "SW_THERM_SLOWDOWN", _ULL, _quantity("sw_thermal_seconds", _NANO), _R575, _RENUMBERED),
    FieldValueRow(252, "HW_THERM_SLOWDOWN", _ULL, _quantity("hw_thermal_seconds", _NANO), _R575, _RENUMBERED),
    FieldValueRow(253, "HW_POWER_BRAKE", _ULL, _quantity("hw_power_brake_seconds", _NANO), _R575, _RENUMBERED),
    FieldValueRow(269, "PWR_SMOOTHING_PRESET", _UINT, _preset(100), _R575, _RENUMBERED),
    FieldValueRow(270, "PWR_SMOOTHING_PRESET", _UINT, _preset(200), _R575, _RENUMBERED),
    FieldValueRow(271, "PWR_SMOOTHING_PRESET", _UINT, _preset(300), _R575, _RENUMBERED),
    FieldValueRow(251, "PWR_SMOOTHING_PRESET", _UINT, _preset(100), _R570, _R575),
    FieldValueRow(252, "PWR_SMOOTHING_PRESET", _UINT, _preset(200), _R570, _R575),
    FieldValueRow(253, "PWR_SMOOTHING_PRESET", _UINT, _preset(300), _R570, _R575),
    FieldValueRow(251, "PWR_SMOOTHING_PRESET", _UINT, _preset(100), _RENUMBERED),
    FieldValueRow(252, "PWR_SMOOTHING_PRESET", _UINT, _preset(200), _RENUMBERED),
    FieldValueRow(253, "PWR_SMOOTHING_PRESET", _UINT, _preset(300), _RENUMBERED),
    FieldValueRow(269, "SW_THERM_SLOWDOWN", _ULL, _quantity("sw_thermal_seconds", _NANO), _RENUMBERED),
    FieldValueRow(270, "HW_THERM_SLOWDOWN", _ULL, _quantity("hw_thermal_seconds", _NANO), _RENUMBERED),
    FieldValueRow(271, "HW_POWER_BRAKE", _ULL, _quantity("hw_power_brake_seconds", _NANO), _RENUMBERED),
)
ECC_TOTALS, NVLINK5_COUNTERS = range(3, 7), range(201, 223)
"""Ranges of field ids. On Blackwell, the fields of ECC_TOTALS fail in a batch that also requests a field of
NVLINK5_COUNTERS.
"""
NAMES = frozenset(row.name for row in ROWS)


@cache
def rows_of(driver: Version) -> Mapping[int, FieldValueRow]:
    """Return the fields that a driver version has, by field id."""
    return {row.number: row for row in ROWS if row.since <= driver < row.until}
