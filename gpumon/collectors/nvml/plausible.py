"""Plausible ranges of readings, by the unit in the name of the metric, and a filter that drops other values.

A value outside its range is an error of the driver or the GPU.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from gpumon.model.reading import Tier

log = logging.getLogger(__name__)

BOUNDS: Mapping[str, tuple[float, float]] = {
    "ratio": (0, 1),
    "celsius": (-100, 200),
    "watts": (0, 20_000),
    "hertz": (0, 50e9),
    "bytes": (0, 2**60),
    "second": (0, 1e15),
    "joules_total": (0, 1e14),
    "seconds_total": (0, 1e10),
}
"""Lowest and highest plausible value by unit.

The unit is the last word of a metric's name, or the last two words for a counter. Limits of counters allow for decades
of operation. Metrics with other units may have any finite value that is not negative.
"""

_YES_OR_NO = (
    *("ecc_mode", "ecc_mode_pending", "ecc_sram_threshold_exceeded", "row_remap_pending", "row_remap_failed"),
    *("repair_pending", "memory_unrepairable"),
    *("retired_pages_pending", "persistence_mode", "mig_mode", "mig_mode_pending"),
)
EXCEPTIONS: Mapping[str, tuple[float, float]] = {
    "fan_speed_ratio": (0, 1.2),
    "recovery_action": (0, 31),
    "performance_state": (0, 15),
    "compute_mode": (0, 3),
    "pcie_link_generation": (0, 15),
    "pcie_link_generation_max": (0, 15),
    "pcie_link_width": (0, 32),
    "pcie_link_width_max": (0, 32),
    "nvlinks": (0, 255),
    **dict.fromkeys(_YES_OR_NO, (0, 1)),
}
"""Plausible ranges of individual metrics, by metric name. They replace the range of the unit in BOUNDS.

A fan may exceed its nominal speed. Some ranges of numeric codes leave room for codes of newer drivers.
"""

OPEN = (0.0, math.inf)


@cache
def bounds(row: str) -> tuple[float, float]:
    """Return the lowest and the highest plausible value of the metric named `row`."""
    unit = "_".join(row.split("_")[-2 if row.endswith("_total") else -1 :])
    return EXCEPTIONS.get(row) or BOUNDS.get(unit, OPEN)


class PlausibilityFilter:
    """Drops implausible values of one GPU, counts them by calling `count`, and logs when they begin and end."""

    def __init__(self, bus_id: str, count: Callable[[str], None]) -> None:
        self._bus_id = bus_id
        self._count = count
        self._dropped: dict[Tier, dict[str, float]] = {}
        """Implausible values of the current reading, by tier and name of the metric."""
        self._dropped_before: dict[Tier, Mapping[str, float]] = {}

    def begin(self, tier: Tier) -> None:
        self._dropped_before[tier], self._dropped[tier] = self._dropped.get(tier, {}), {}

    def plausible(self, tier: Tier, row: str, value: Any) -> Any:
        """Return the value of the metric named `row`, or the items of a dict, if plausible; else None."""
        if isinstance(value, dict):
            return {key: item for key, item in value.items() if self.plausible(tier, row, item) is not None} or None
        low, high = bounds(row)
        if low <= value <= high and math.isfinite(value):
            return value
        self._dropped[tier][row] = value
        self._count("Implausible")
        return None

    def log_changes(self, tier: Tier) -> None:
        """Log the metrics that became implausible, or are no longer, in this reading of the tier."""
        now, before = self._dropped[tier], self._dropped_before[tier]
        for row in now.keys() - before.keys():
            log.warning(
                "implausible reading is left out", extra={"pci_bus_id": self._bus_id, "row": row, "value": now[row]}
            )
        for row in before.keys() - now.keys():
            log.info("reading is no longer implausible", extra={"pci_bus_id": self._bus_id, "row": row})
