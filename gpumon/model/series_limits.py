"""TABLE: the most of each kind that is exported, so that no fault makes a page that Prometheus refuses as a whole.

What is beyond a cap is counted in `gpumon_dropped_series_total`, by the name it has here.
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
"""Xids, processes, MIG instances and links of each kind: of one GPU. The others: of the node."""
