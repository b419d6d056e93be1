"""TABLE: what a reading can be, by the unit in its name. Outside of it the driver, or the GPU, talks nonsense."""

from __future__ import annotations

import math
from collections.abc import Mapping

BOUNDS: Mapping[str, tuple[float, float]] = {
    "ratio": (0, 1),
    "celsius": (-100, 200),
    "watts": (0, 20_000),
    "hertz": (0, 100e9),
    "bytes": (0, 2**60),
    "second": (0, 1e15),
    "joules_total": (0, 1e14),
    "seconds_total": (0, 1e10),
}
"""Lowest and highest, by the last word of a name, of a counter the last two. Of decades, for what grows with time.

Plain numbers, and what else is counted: any that is finite and not negative.
"""

EXCEPTIONS: Mapping[str, tuple[float, float]] = {"fan_speed_ratio": (0, 1.2)}
"""Rows that know better: a fan may be asked for more than its nominal speed."""

OPEN = (0.0, math.inf)


def is_plausible(row: str, value: float) -> bool:
    """Whether this row of a table can have this value; NaN and infinity never."""
    unit = "_".join(row.split("_")[-2 if row.endswith("_total") else -1 :])
    low, high = EXCEPTIONS.get(row) or BOUNDS.get(unit, OPEN)
    return low <= value <= high and math.isfinite(value)
