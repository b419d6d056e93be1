"""Table of limits on the number of series, so that no fault makes Prometheus reject a page as too large."""

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
"""Maximum number of items that get series, by kind. Per GPU: Xid codes, processes, MIG instances, and links of each
type. Per node: SXid codes of NVSwitches, ports, and poll errors.
"""
