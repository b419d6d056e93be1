"""Table of the maximum number of series of each kind, so that no fault makes Prometheus reject the whole page."""

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
"""Maximum number of series by kind. Per GPU: xids, processes, migs, and links of each type. Per node: the others."""
