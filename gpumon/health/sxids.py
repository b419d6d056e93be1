"""TABLE: SXids of NVSwitches whose action does not follow from the severity in their line.

Source: NVIDIA, Fabric Manager user guide, SXid errors (v1.3); 26006 and 26008: NVIDIA/NVSentinel, whose lines have no
severity.
"""

from __future__ import annotations

LINK_DOWN = frozenset({20034, 22012})
"""The link to a GPU or switch went down: LTSSM fault up, Minion link NA. The line says "Fatal", also when a GPU that is
reset takes its links down. A reset of the GPU behind the link is the repair.
"""
ALWAYS_FATAL = frozenset(
    {10003, 12020, 22003, 22011, *range(23001, 23018)}  # the whole fabric, by the guide
    | {26006, 26008}  # the switch's own processor halted, or its watchdog fired
)
"""Fatal to the fabric even if the line has no severity: GPUs and NVSwitches must be reset together."""


THERMAL = frozenset({10004, 10005})
"""Begin and end of a thermal event: by the guide not fatal, whatever severity the line has."""


def is_link_failure(code: int, *, fatal: bool | None) -> bool:
    """Return whether one link failed, which a reset of the GPU behind it repairs.

    `fatal`: severity in the line; None if the line has none. By the guide, an error that is fatal but not always so
    affects the jobs of one GPU if its port leads to a GPU.
    """
    return code in LINK_DOWN or (bool(fatal) and code not in ALWAYS_FATAL | THERMAL)
