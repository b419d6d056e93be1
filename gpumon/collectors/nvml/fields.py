"""Read several NVML fields of one GPU with one driver call. The ids of the fields depend on the driver version."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from gpumon.collectors.nvml.library import UNKNOWN, Library, NvmlError

Version = tuple[int, ...]


class FieldId(NamedTuple):
    """The id of a field, and the driver versions that use it: from `since` up to, but not including, `until`."""

    name: str
    number: int
    since: Version = ()
    until: Version = (10_000,)


_BEFORE_RENUMBERING: Version = (580, 82)

# pynvml's constants cannot be used: 25 ids were renumbered between drivers, and the constants depend on pynvml's
# version, not the driver's. For example, id 269 is CLOCKS_EVENT_SW_THERMAL since driver 580.82. Driver 580.65 reports
# no error for it, but returns a power-smoothing preset.
FIELD_IDS = (
    FieldId("ECC_CURRENT", 1),
    FieldId("ECC_PENDING", 2),
    FieldId("ECC_SBE_VOL_TOTAL", 3),
    FieldId("ECC_DBE_VOL_TOTAL", 4),
    FieldId("ECC_SBE_AGG_TOTAL", 5),
    FieldId("ECC_DBE_AGG_TOTAL", 6),
    FieldId("ECC_SBE_VOL_DEV", 11),
    FieldId("ECC_DBE_VOL_DEV", 12),
    FieldId("ECC_SBE_AGG_DEV", 22),
    FieldId("ECC_DBE_AGG_DEV", 23),
    FieldId("RETIRED_SBE", 29),
    FieldId("RETIRED_DBE", 30),
    FieldId("RETIRED_PENDING", 31),
    FieldId("CLOCKS_EVENT_SW_POWER_CAP", 74, since=(575,)),
    FieldId("PERF_POLICY_THERMAL", 75),
    FieldId("CLOCKS_EVENT_SYNC_BOOST", 76, since=(575,)),
    FieldId("PERF_POLICY_BOARD_LIMIT", 77),
    FieldId("PERF_POLICY_LOW_UTILIZATION", 78),
    FieldId("PERF_POLICY_RELIABILITY", 79),
    FieldId("MEMORY_TEMP", 82),
    FieldId("TOTAL_ENERGY", 83),
    FieldId("NVLINK_LINK_COUNT", 91),
    FieldId("PCIE_REPLAY_COUNTER", 94),
    FieldId("NVLINK_THROUGHPUT_DATA_TX", 138),
    FieldId("NVLINK_THROUGHPUT_DATA_RX", 139),
    FieldId("REMAPPED_COR", 142),
    FieldId("REMAPPED_UNC", 143),
    FieldId("REMAPPED_PENDING", 144),
    FieldId("REMAPPED_FAILURE", 145),
    FieldId("NVLINK_ERROR_DL_REPLAY", 161),
    FieldId("NVLINK_ERROR_DL_RECOVERY", 162),
    FieldId("NVLINK_ERROR_DL_CRC", 163),
    FieldId("NVLINK_GET_SPEED", 164, since=(535,)),
    FieldId("NVLINK_GET_STATE", 165),
    FieldId("PCIE_L0_TO_RECOVERY_COUNTER", 169, since=(535,)),
    FieldId("C2C_LINK_COUNT", 170, since=(535,)),
    FieldId("C2C_LINK_GET_STATUS", 171, since=(535,)),
    FieldId("PCIE_COUNT_CORRECTABLE_ERRORS", 173, since=(535,)),
    FieldId("PCIE_COUNT_NAKS_RECEIVED", 174, since=(535,)),
    FieldId("PCIE_COUNT_RECEIVER_ERROR", 175, since=(535,)),
    FieldId("PCIE_COUNT_BAD_TLP", 176, since=(535,)),
    FieldId("PCIE_COUNT_NAKS_SENT", 177, since=(535,)),
    FieldId("PCIE_COUNT_BAD_DLLP", 178, since=(535,)),
    FieldId("PCIE_COUNT_NON_FATAL_ERROR", 179, since=(535,)),
    FieldId("PCIE_COUNT_FATAL_ERROR", 180, since=(535,)),
    FieldId("PCIE_COUNT_UNSUPPORTED_REQ", 181, since=(535,)),
    FieldId("PCIE_COUNT_LCRC_ERROR", 182, since=(535,)),
    FieldId("PCIE_COUNT_LANE_ERROR", 183, since=(535,)),
    FieldId("POWER_AVERAGE", 185, since=(530,)),
    FieldId("POWER_INSTANT", 186, since=(530,)),
    FieldId("POWER_MIN_LIMIT", 187, since=(530,)),
    FieldId("POWER_MAX_LIMIT", 188, since=(530,)),
    FieldId("POWER_DEFAULT_LIMIT", 189, since=(530,)),
    FieldId("POWER_CURRENT_LIMIT", 190, since=(530,)),
    FieldId("POWER_REQUESTED_LIMIT", 192, since=(530,)),
    FieldId("TEMPERATURE_SLOWDOWN_TLIMIT", 194, since=(530,)),
    FieldId("NVLINK_COUNT_XMIT_BYTES", 202, since=(560,)),
    FieldId("NVLINK_COUNT_RCV_BYTES", 204, since=(560,)),
    FieldId("NVLINK_COUNT_MALFORMED_PACKET_ERRORS", 206, since=(560,)),
    FieldId("NVLINK_COUNT_BUFFER_OVERRUN_ERRORS", 207, since=(560,)),
    FieldId("NVLINK_COUNT_RCV_ERRORS", 208, since=(560,)),
    FieldId("NVLINK_COUNT_RCV_REMOTE_ERRORS", 209, since=(560,)),
    FieldId("NVLINK_COUNT_RCV_GENERAL_ERRORS", 210, since=(560,)),
    FieldId("NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS", 211, since=(560,)),
    FieldId("NVLINK_COUNT_XMIT_DISCARDS", 212, since=(560,)),
    FieldId("NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS", 213, since=(560,)),
    FieldId("NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS", 214, since=(560,)),
    FieldId("NVLINK_COUNT_EFFECTIVE_ERRORS", 219, since=(560,)),
    FieldId("NVLINK_COUNT_EFFECTIVE_BER", 220, since=(560,)),
    FieldId("NVLINK_COUNT_SYMBOL_ERRORS", 221, since=(560,)),
    FieldId("NVLINK_COUNT_SYMBOL_BER", 222, since=(560,)),
    FieldId("RECOVERY_ACTION", 230, since=(570,)),
    FieldId("CLOCKS_EVENT_SW_THERMAL", 251, since=(575,), until=_BEFORE_RENUMBERING),
    FieldId("CLOCKS_EVENT_HW_THERMAL", 252, since=(575,), until=_BEFORE_RENUMBERING),
    FieldId("CLOCKS_EVENT_HW_POWER_BRAKE", 253, since=(575,), until=_BEFORE_RENUMBERING),
    FieldId("CLOCKS_EVENT_SW_THERMAL", 269, since=_BEFORE_RENUMBERING),
    FieldId("CLOCKS_EVENT_HW_THERMAL", 270, since=_BEFORE_RENUMBERING),
    FieldId("CLOCKS_EVENT_HW_POWER_BRAKE", 271, since=_BEFORE_RENUMBERING),
    FieldId("BANK_REMAPPER_HISTOGRAM_NONE", 306, since=(615,)),
    FieldId("PENDING_BANK_REMAPPING", 307, since=(615,)),
)


def version(driver: str) -> Version:
    """Return a driver version such as `580.65.06` as numbers: (580, 65, 6). Stop at a part that is not a number."""
    parts: list[int] = []
    for part in driver.split("."):
        if not part.isdigit():
            break
        parts.append(int(part))
    return tuple(parts)


@cache
def field_ids(driver: str) -> Mapping[str, int]:
    """Return the id of each field that this driver version has, by name. Other fields are left out."""
    this = version(driver)
    return {row.name: row.number for row in FIELD_IDS if row.since <= this < row.until}


# nvmlFieldValue_t: fieldId, scopeId, timestamp, latencyUsec, valueType, nvmlReturn, value
_LAYOUT = struct.Struct("<IIqqIi8s")
_DOUBLE = 0
"""NVML's value type "double". None of gpumon's fields has it."""
_VALUE_TYPES = {
    1: struct.Struct("<I4x"),
    2: struct.Struct("<Q"),
    3: struct.Struct("<Q"),
    4: struct.Struct("<q"),
    5: struct.Struct("<i4x"),
    6: struct.Struct("<H6x"),
}


ALL_ONES = frozenset({0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})
"""Values that drivers return instead of an error if they have no value."""
NONSENSE = math.inf
"""Infinity replaces an answer that cannot be valid. Values computed from it are infinite, and so are dropped later."""


class Scoped(NamedTuple):
    """An NVML field and its scope, for example a link number."""

    name: str
    scope: int = 0
    link: bool = False
    """Whether the scope is a link number."""


Answer = float | NvmlError | None
"""Answer of the driver for a field: a value, NONSENSE, an error, or None for success without a value."""


class Batch:
    """Fields that are read together with one driver call, and the buffer for it. `numbers`: field ids by name."""

    def __init__(self, scoped: Sequence[Scoped], numbers: Mapping[str, int]) -> None:
        # The driver does not write entries of unknown fields, so each entry starts as failed.
        entries = (_LAYOUT.pack(numbers[field.name], field.scope, 0, 0, 0, UNKNOWN, b"") for field in scoped)
        self.scoped = tuple(scoped)
        self._question = b"".join(entries)
        self._buffer = ctypes.create_string_buffer(self._question, len(self._question))

    def read(self, library: Library, handle: Any, bus_id: str) -> dict[Scoped, Answer]:
        """Read the fields by one driver call. Return an answer or error for each. Raise NvmlError if the call fails."""
        ctypes.memmove(self._buffer, self._question, len(self._question))
        library.raw("nvmlDeviceGetFieldValues", handle, len(self.scoped), self._buffer, bus_id=bus_id)
        return {
            scoped: _answer(timestamp, kind, value) if not code else NvmlError(code, f"field {scoped.name}")
            for scoped, (_, _, timestamp, _, kind, code, value) in zip(
                self.scoped, _LAYOUT.iter_unpack(self._buffer), strict=True
            )
        }


def _answer(timestamp: int, kind: int, value: bytes) -> float | None:
    layout = _VALUE_TYPES.get(kind)
    if layout is None:
        # Without a value, some drivers return success, type double and no timestamp, for example if ECC is disabled.
        return None if kind == _DOUBLE and not timestamp else NONSENSE
    (number,) = layout.unpack(value)
    return NONSENSE if number in ALL_ONES else float(number)
