"""Sets of SXids of NVSwitches by their effect, if that does not follow from the text of their kernel log line.

Sources: NVIDIA, Fabric Manager user guide, SXid errors (v1.3); NVIDIA/NVSentinel; NVIDIA/open-gpu-kernel-modules,
src/common/nvswitch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpumon.model.str_enum import StrEnum


class Scope(StrEnum):
    """What an SXid affects. It decides the severity and the repair."""

    HARMLESS = "harmless"
    MINOR = "minor"
    LINK = "link"
    """One link: the repair is a reset of the GPU behind it."""
    FABRIC = "fabric"
    """A whole NVSwitch, or all of them: the repair is a reboot of the node."""


LINK_DOWN = frozenset({20034, 22012})
"""SXids for a link to a GPU or switch that went down (LTSSM fault up, Minion link NA). The line contains "Fatal" even
if a reset of the GPU took the link down.
"""
_ALWAYS_FATAL = frozenset(
    {10003, 12020, 22003, 22011, *range(23001, 23018)}  # fatal to the whole fabric, by the guide
    | {10006, 10007, 10008, 10009}  # the switch is too hot and off, or its firmware does not work
    | {22010}  # watchdog of a MINION, which serves several links: the driver marks the whole switch
    | {*range(26001, 26006), 26006, 26008}  # the switch's own processor did not start, halted, or its watchdog fired
)
"""SXids for errors of a whole switch or fabric, even if the line has no severity or names a link."""
_THERMAL = frozenset({10004, 10005})
"""SXids for the begin and end of a thermal event. By the guide they are not fatal, whatever severity the line has."""
_HARMLESS = frozenset(
    {22013}  # logged for each link when the driver is loaded
    | {11012, 11021, 11022, 11023, 12021, 12023, 15008, 15011, 24001, 24002, 24003}
    | {19049, 19055, 19057, 19059, 19062, 19065, 19068, 19071}
)
"""SXids that need no action by the guide, unless the line contains "Fatal". All but the first: corrected ECC errors."""
_NAMES_LINK = re.compile(r"Fatal, Link \d", re.IGNORECASE)


def scope(code: int, texts: Iterable[str], *, fatal: bool | None) -> Scope:
    """Return what an SXid affects.

    `texts`: the text of each of its kernel log lines. `fatal`: severity in the lines; None if they have none. By the
    guide, any other fatal error of a link affects only the jobs of one GPU, if the port leads to a GPU.
    """
    if code in LINK_DOWN:
        return Scope.LINK
    if code in _ALWAYS_FATAL:
        return Scope.FABRIC
    if code in _THERMAL or not fatal:
        return Scope.HARMLESS if code in _HARMLESS else Scope.MINOR
    fatal_texts = [text for text in texts if text.lower().startswith("fatal")]
    return Scope.LINK if fatal_texts and all(map(_NAMES_LINK.match, fatal_texts)) else Scope.FABRIC
