"""TABLE: Xids whose meaning depends on words in their log text.

Sources: NVIDIA/open-gpu-kernel-modules 595.45.04, and its files under src/nvidia/src/kernel/events of driver 615.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple

from gpumon.health.nvlink5 import FOLLOW_154
from gpumon.health.xids import RESET, SUPPORT, XIDS, Severity, Xid


class Variant(NamedTuple):
    """The row that applies to an Xid instead of its own if its log text contains a match of the pattern."""

    pattern: re.Pattern[str]
    row: Xid


_PENDING = r"already pending remapping|due to pending (?:row remap|bank remap|LTS swap)"
_RESET_FLAG = r"\bRST: Yes"
"""The driver requires a GPU reset, at once (RST) or when its jobs are drained (D-RST): kern_gpu_error_cont_ga100.c."""
TABLE: tuple[Variant, ...] = tuple(
    Variant(re.compile(pattern, re.IGNORECASE), row)
    for pattern, row in (
        (_PENDING, replace(XIDS[63], code=64, name="Memory is already marked for repair")),
        (r"failed to train link \d+ to remote", replace(XIDS[136], code=74)),
        (
            r"GSP-RISCV .*fatal error",
            replace(XIDS[94], name="Fatal error of the GSP", severity=Severity.CRITICAL, action=RESET),
        ),
        (
            _RESET_FLAG,
            replace(
                XIDS[94],
                name="Contained memory error, after which the driver requires a reset",
                severity=Severity.CRITICAL,
                action=RESET,
                if_it_recurs=SUPPORT,
            ),
        ),
        (r"\bNon-?fatal\b", replace(XIDS[155], severity=Severity.WARNING, action=FOLLOW_154)),
    )
)


def row_for(row: Xid, text: str) -> Xid:
    """Return the row that applies to this log text. Fields that the operator set in `row` keep their values."""
    for variant in TABLE:
        if variant.row.code == row.code and variant.pattern.search(text):
            return replace(variant.row, ordered=row.ordered, **{name: getattr(row, name) for name in row.ordered})
    return row
