"""The state of counters that the daemon accumulates from the values of a driver or of the kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Count(NamedTuple):
    """State of one counter: the exported `total`, and `raw`, the driver's value that last advanced `total`.

    `raw` is None for a counter that the sampler integrates.
    """

    total: float
    raw: float | None
    fallen: float | None = None
    """Raw value below `raw` that was read after it, because the counter restarted or the reading was wrong. A later
    value must confirm it. None if there is none.
    """
    fallen_at: float = 0.0
    """Time at which `fallen` was first read, as Now.uptime."""


Counts = Mapping[str, Mapping[str, Count]]
"""Counters by metric, then by label value ("" for a metric without labels)."""
