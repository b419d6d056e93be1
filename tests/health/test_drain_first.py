"""What gpumon tells an operator to do: a node or a GPU is drained before it is reset or rebooted."""

from __future__ import annotations

import re

from gpumon.health.checks.gpu import FAULTS
from gpumon.health.table import CHECKS
from gpumon.health.verdict import ACTIONS
from gpumon.health.xid_texts import RECOVERY
from gpumon.health.xids import TABLE

REPAIR = re.compile(r"(?:^|[.:;,] |then |and |\d\. |the GPU or )(?:reset|reboot|power-cycle)\b", re.IGNORECASE)
FREE = re.compile(r"drain|until the GPU is idle|stop the jobs", re.IGNORECASE)


def test_every_text_drains_before_it_resets_or_reboots() -> None:
    """Actions of verdicts, faults and Xids, and each runbook, name the drain first."""
    texts = [
        *ACTIONS.values(),
        *(advice.action for advice in FAULTS.values()),
        *(recovery.next_step for recovery in RECOVERY.values()),
        *(text for xid in TABLE for text in (xid.action, xid.if_it_recurs)),
        *(check.steps for check in CHECKS),
    ]
    idle = "reset the GPU when it is idle"
    repairs = [(text, match.start()) for text in texts if idle not in text and (match := REPAIR.search(text))]
    assert len(repairs) > 40
    assert [text for text, at in repairs if not (free := FREE.search(text)) or free.start() > at] == []
