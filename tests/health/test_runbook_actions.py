"""What gpumon tells an operator to do: the drain comes first, and runbooks agree with the actions of verdicts."""

from __future__ import annotations

import re

from each_case import each_case

from benchmarks.truth.fault import FaultRow
from benchmarks.truth.faults import FAULTS
from gpumon.health.check_row import Check
from gpumon.health.checks import gpu
from gpumon.health.table import BY_NAME, CHECKS
from gpumon.health.verdict import ACTIONS, Action
from gpumon.health.xid_texts import RECOVERY
from gpumon.health.xids import TABLE

REPAIR = re.compile(r"\b(re-?set|reboot|power-cycle|replace|restart)\b(?! shutdown)", re.IGNORECASE)
CONDITION = re.compile(r"\bif\b|^after\b|^do not\b|\ba restart\b", re.IGNORECASE)
WORDS = {Action.RESTART: "restart", Action.RESET: "reset", Action.REBOOT: "reboot", Action.REPLACE: "replace"}
OF_VERDICT = "action of the verdict"
"""Words of a runbook whose verdicts have different actions."""


@each_case("check", CHECKS, ids=[check.name for check in CHECKS])
def test_first_step_names_no_second_repair(check: Check) -> None:
    """After "Do:" the action of the verdict comes first; the advice names another repair only with a condition."""
    for sentence in re.split(r"(?<=[.;:]) ", check.advice):
        assert not REPAIR.search(sentence) or CONDITION.search(sentence), sentence


@each_case("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_runbook_names_the_action_of_its_verdict(fault: FaultRow) -> None:
    steps = BY_NAME[fault.check].steps.lower()
    assert fault.action not in WORDS or WORDS[fault.action] in steps or OF_VERDICT in steps


DISRUPTION = re.compile(r"(?:^|[.:;,] |then |and |\d\. |the GPU or )(?:reset|reboot|power-cycle)\b", re.IGNORECASE)
FREE = re.compile(r"drain|until the GPU is idle|stop the jobs", re.IGNORECASE)


def test_every_text_drains_before_it_resets_or_reboots() -> None:
    """Actions of verdicts, faults and Xids, and each runbook, name the drain first."""
    texts = [
        *ACTIONS.values(),
        *(advice.action for advice in gpu.FAULTS.values()),
        *(recovery.next_step for recovery in RECOVERY.values()),
        *(text for xid in TABLE for text in (xid.action, xid.if_it_recurs)),
        *(check.steps for check in CHECKS),
    ]
    idle = "reset the GPU when it is idle"
    repairs = [(text, match.start()) for text in texts if idle not in text and (match := DISRUPTION.search(text))]
    assert len(repairs) > 40
    assert [text for text, at in repairs if not (free := FREE.search(text)) or free.start() > at] == []
