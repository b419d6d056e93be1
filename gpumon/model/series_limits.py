"""TABLE: the maximum number of series of each kind, so that no fault makes Prometheus reject the whole page.

Series beyond a limit are counted in `gpumon_dropped_series_total`, by the name used here.
"""

from __future__ import annotations

from collections.abc import Mapping

MAX_SERIES: Mapping[str, int] = {
    "xids": 64,
    "processes": 64,
    "migs": 16,
    "links": 36,
    "sxids": 64,
    "ports": 64,
    "poll_errors": 128,
}
"""Xids, processes, MIG instances and links of each kind: per GPU. The others: per node."""
