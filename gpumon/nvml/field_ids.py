"""TABLE: numbers of the fields of nvmlDeviceGetFieldValues, by driver version.

Our own, because the numbers are no stable interface: 25 were renumbered between drivers, and the constants of the
bindings follow the bindings' version, not the driver's. Field 269 on 580.65 is a power-smoothing preset, with success.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

Version = tuple[int, ...]


class FieldId(NamedTuple):
    """One number, and the drivers on which it means this field: from `since` up to and without `until`."""

    name: str
    number: int
    since: Version = ()
    until: Version = (10_000,)


_BEFORE_RENUMBERING: Version = (580, 82)

FIELD_IDS = (
    FieldId("ECC_SBE_VOL_TOTAL", 3),
    FieldId("ECC_DBE_VOL_TOTAL", 4),
    FieldId("ECC_SBE_VOL_DEV", 11),
    FieldId("ECC_DBE_VOL_DEV", 12),
    FieldId("CLOCKS_EVENT_SW_POWER_CAP", 74, since=(575,)),
    FieldId("CLOCKS_EVENT_SYNC_BOOST", 76, since=(575,)),
    FieldId("MEMORY_TEMP", 82),
    FieldId("TOTAL_ENERGY", 83),
    FieldId("NVLINK_LINK_COUNT", 91),
    FieldId("PCIE_REPLAY_COUNTER", 94),
    FieldId("REMAPPED_COR", 142),
    FieldId("REMAPPED_UNC", 143),
    FieldId("REMAPPED_PENDING", 144),
    FieldId("REMAPPED_FAILURE", 145),
    FieldId("NVLINK_ERROR_DL_REPLAY", 161),
    FieldId("NVLINK_ERROR_DL_RECOVERY", 162),
    FieldId("NVLINK_ERROR_DL_CRC", 163),
    FieldId("NVLINK_GET_STATE", 165),
    FieldId("POWER_AVERAGE", 185, since=(530,)),
    FieldId("POWER_CURRENT_LIMIT", 190, since=(530,)),
    FieldId("RECOVERY_ACTION", 230, since=(570,)),
    FieldId("CLOCKS_EVENT_SW_THERMAL", 251, since=(575,), until=_BEFORE_RENUMBERING),
    FieldId("CLOCKS_EVENT_HW_THERMAL", 252, since=(575,), until=_BEFORE_RENUMBERING),
    FieldId("CLOCKS_EVENT_HW_POWER_BRAKE", 253, since=(575,), until=_BEFORE_RENUMBERING),
    FieldId("CLOCKS_EVENT_SW_THERMAL", 269, since=_BEFORE_RENUMBERING),
    FieldId("CLOCKS_EVENT_HW_THERMAL", 270, since=_BEFORE_RENUMBERING),
    FieldId("CLOCKS_EVENT_HW_POWER_BRAKE", 271, since=_BEFORE_RENUMBERING),
)


def version(driver: str) -> Version:
    """`580.65.06` as numbers; parts that are not numbers end it."""
    parts: list[int] = []
    for part in driver.split("."):
        if not part.isdigit():
            break
        parts.append(int(part))
    return tuple(parts)


@cache
def field_ids(driver: str) -> Mapping[str, int]:
    """Numbers that this driver gives to the fields it has. A name that is missing is a field it lacks."""
    this = version(driver)
    return {row.name: row.number for row in FIELD_IDS if row.since <= this < row.until}
