"""Sets of SXids of NVSwitches whose action does not follow from the severity in their kernel log line.

Source: NVIDIA, Fabric Manager user guide, SXid errors (v1.3); 26006 and 26008: NVIDIA/NVSentinel (their lines
have no severity).
"""

from __future__ import annotations

LINK_DOWN = frozenset({20034, 22012})
"""SXids for a link to a GPU or switch that went down (LTSSM fault up, Minion link NA). The line contains "Fatal" even
if a reset of the GPU took the link down. The repair is a reset of the GPU behind the link.
"""
ALWAYS_FATAL = frozenset(
    {10003, 12020, 22003, 22011, *range(23001, 23018)}  # fatal to the whole fabric, by the guide
    | {26006, 26008}  # the switch's own processor halted, or its watchdog fired
)
"""SXids that are fatal even if the line has no severity: all GPUs and NVSwitches must be reset together."""


THERMAL = frozenset({10004, 10005})
"""SXids for the begin and end of a thermal event. By the guide they are not fatal, whatever severity the line has."""


def is_link_failure(code: int, *, fatal: bool | None) -> bool:
    """Return whether an SXid reports the failure of one link, which a reset of the GPU behind the link repairs.

    `fatal`: severity in the line; None if the line has none. By the guide, a fatal error that is not in ALWAYS_FATAL
    or THERMAL affects only the jobs of one GPU, if the failed port leads to a GPU.
    """
    return code in LINK_DOWN or (bool(fatal) and code not in ALWAYS_FATAL | THERMAL)
