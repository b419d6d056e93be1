"""TABLE: what is read of each NVLink of each GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gpumon.snapshot.reading import SLOW, Each, LinkField, reading

ACTIVE, ASLEEP = 1, 2
"""Link states that are up: a sleeping link is not down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nvlink:
    """Readings of one NVLink."""

    PREFIX: ClassVar[str] = "gpumon_nvlink_"
    LABELS: ClassVar[tuple[str, ...]] = ("gpu", "uuid", "link")

    up: float | None = reading(
        "1 for a link that is active or asleep.", LinkField("NVLINK_GET_STATE", states=(ACTIVE, ASLEEP)), every=SLOW
    )
    errors_total: dict[str, float] | None = reading(
        "Errors of the link.",
        Each(
            {
                "replay": LinkField("NVLINK_ERROR_DL_REPLAY"),
                "recovery": LinkField("NVLINK_ERROR_DL_RECOVERY"),
                "crc": LinkField("NVLINK_ERROR_DL_CRC"),
            }
        ),
        every=SLOW,
        label="kind",
        note="Up to Hopper.",
    )
