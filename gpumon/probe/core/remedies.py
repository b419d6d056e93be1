"""TABLE: what to do about failures that NCCL, CUDA and the system name in words of their own."""

from __future__ import annotations

import re

TABLE = (
    (
        r"(?s)/dev/shm.*No space left|No space left.*/dev/shm|creating shared memory segment",
        "Enlarge /dev/shm: `docker run --shm-size=1g`, in Kubernetes an emptyDir of medium Memory mounted there.",
    ),
    (
        r"system not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY|cudaErrorSystemNotReady",
        "Is the fabric manager running? `systemctl status nvidia-fabricmanager`.",
    ),
    (
        r"Too many open files|Resource temporarily unavailable|Cannot allocate memory",
        "A limit of the host or of the agent's unit is reached: open files, processes (TasksMax) or memory.",
    ),
    (
        r"Read-only file system",
        "Something of torch wants to write: see the log for the path, and give it room there.",
    ),
)
"""A pattern, searched for in the error and in what the rank printed, and the remedy; the first that fits is told."""


def remedy(text: str) -> str:
    """Empty for what is not known."""
    return next((words for pattern, words in TABLE if re.search(pattern, text)), "")
