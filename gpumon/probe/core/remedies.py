"""Chooses advice for the operator about a failed run, by error messages and by the stage that a rank reached. Pure."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec

from gpumon.probe.core.frames import SETUP_STAGES, Account
from gpumon.probe.core.passes import Pass

TABLE = (
    (
        r"(?s)/dev/shm.*No space left|No space left.*/dev/shm|creating shared memory segment",
        "Enlarge /dev/shm: `docker run --shm-size=1g`, in Kubernetes an emptyDir of medium Memory mounted there.",
    ),
    (
        r"system not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY|cudaErrorSystemNotReady",
        "Check that the fabric manager runs: `systemctl status nvidia-fabricmanager`.",
    ),
    (
        r"Too many open files|Resource temporarily unavailable|Cannot allocate memory|can't start new thread",
        "A limit of the host or of the agent's unit is reached: open files, processes, threads (TasksMax) or memory.",
    ),
    (
        r"Read-only file system",
        "torch needs to write a file: the log names the path; make it writable.",
    ),
)
"""Regular expressions to search in the error and output of a rank, each with its remedy. The first match is used."""


def remedy(text: str) -> str:
    """Return the remedy for an error message or output; empty if no pattern of TABLE matches."""
    return next((words for pattern, words in TABLE if re.search(pattern, text)), "")


TRIALS = {"start": "--version", "import": "-c 'import torch'"}
"""Arguments of the Python interpreter with which an operator can repeat a stage of a rank, by stage."""
TORCH = (2, 6)
"""Oldest tested version of PyTorch, as (major, minor)."""


def torch_installation(python: str) -> str:
    """Return the command that installs PyTorch for the interpreter `python`, in a new environment if it has no pip."""
    own = python == sys.executable and find_spec("pip") is None
    new = "sudo python3 -m venv /opt/torch && sudo /opt/torch/bin/python"
    return f"{new if own else python} -m pip install 'torch>={TORCH[0]}.{TORCH[1]}'"


def interpreter_hint(run_pass: Pass, cause: Account) -> str:
    """Return a hint about probe.python or its PyTorch; empty if the failed rank (`cause`) failed for another reason."""
    python, stage = run_pass.plan.python, cause.progress.stage
    if stage == "start" and cause.error:
        return "Set probe.python to a Python interpreter, or a script that execs one, that the agent's user may run."
    if stage == "start" and (cause.status or 0) >= 0:
        return f"probe.python must be Python 3.9 or later with PyTorch: try `{python} -I {TRIALS[stage]}`."
    if stage == "import":
        return f"Try `{python} -I {TRIALS[stage]}`."
    torch = run_pass.versions.get("torch", "")
    if stage in SETUP_STAGES and numbers(torch) < TORCH:
        return f"PyTorch {torch} is older than the {'.'.join(map(str, TORCH))} that the probe needs."
    return ""


def file_system_hint(run_pass: Pass, stage: str) -> str:
    """Return a hint about slow file systems if ranks hung in the stage `start` or `import`; empty for another stage."""
    if stage not in TRIALS:
        return ""
    where = "Check that the file system of probe.python and its PyTorch answers."
    return f"{where} Try `{run_pass.plan.python} -I {TRIALS[stage]}`."


def log_hint(run_pass: Pass) -> str:
    """Return a hint that points to the log of the run. It is used if no remedy matches."""
    louder = "; `probe.nccl_environment: {NCCL_DEBUG: INFO}` makes NCCL log more"
    return f"The log of the run has the last output of its ranks{louder if run_pass.plan.gpus else ''}."


def numbers(version: str) -> tuple[int, ...]:
    """Return a version as numbers: (2, 10, 1) for 2.10.1+cu130. Return TORCH for a version without numbers."""
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0]))) or TORCH
