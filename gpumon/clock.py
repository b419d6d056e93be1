"""Which boot of the host this is, and its clock."""

from __future__ import annotations

import os
import time

BOOT_ID = "GPUMON_BOOT_ID"
"""Environment, for tests: in place of the kernel's. Another one than before means that the host was rebooted."""
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


def boot_id() -> str:
    """Another one after each boot."""
    given = os.environ.get(BOOT_ID)
    if given:
        return given
    with open(_BOOT_ID, encoding="utf-8") as file:
        return file.read().strip()


def boot_clock() -> float:
    """Seconds of CLOCK_BOOTTIME: runs on while the host sleeps, and is the same in every process."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
