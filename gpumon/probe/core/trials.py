"""What to try, and where to look, when a run has no result: by the stage at which its ranks were. Pure."""

from __future__ import annotations

import re

from gpumon.probe.core.account import SETUP_STAGES, Account
from gpumon.probe.core.passes import Pass

TRIALS = {"start": "--version", "import": "-c 'import torch'"}
"""How to see for oneself whether the interpreter can do what it does at a stage."""
TORCH = (2, 6)
"""Oldest version of PyTorch with which the ranks are tried."""


def trial(one: Pass, cause: Account) -> str:
    """How to see for oneself what is wrong with the interpreter or its torch."""
    python, stage = one.plan.python, cause.progress.stage
    if stage == "start" and cause.error:
        return "Let probe.python name a Python interpreter, or a script that execs one, that the agent's user may run."
    if stage == "start" and (cause.status or 0) >= 0:
        return f"It has to be Python 3.9 or later that has PyTorch (probe.python): try `{python} -I {TRIALS[stage]}`."
    if stage == "import":
        return f"Try `{python} -I {TRIALS[stage]}`."
    torch = one.versions.get("torch", "")
    if stage in SETUP_STAGES and _numbers(torch) < TORCH:
        return f"PyTorch {torch} is older than the {'.'.join(map(str, TORCH))} that the probe needs."
    return ""


def unread(one: Pass, stage: str) -> str:
    """Before its ranks join, a run that hangs most likely waits for a file."""
    if stage not in TRIALS:
        return ""
    where = "Does the file system answer on which probe.python and its PyTorch lie?"
    return f"{where} Try `{one.plan.python} -I {TRIALS[stage]}`."


def more(one: Pass) -> str:
    """Where to look when nobody knows a remedy."""
    louder = "; `probe.nccl_environment: {NCCL_DEBUG: INFO}` makes NCCL say more"
    return f"The log of the run has the last words of its ranks{louder if one.plan.gpus else ''}."


def _numbers(version: str) -> tuple[int, ...]:
    """Of 2.10.1+cu130: (2, 10, 1); of none one that is new enough."""
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0]))) or TORCH
