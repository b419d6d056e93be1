"""The boot id and the boot clock of the host."""

from __future__ import annotations

import os
import time

BOOT_ID = "GPUMON_BOOT_ID"
"""Environment variable whose value replaces the kernel's boot id in tests. It is ignored unless
GPUMON_SIMULATE__PROFILE is set.
"""
SIMULATED = "GPUMON_SIMULATE__PROFILE"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


def boot_id() -> str:
    """Return the kernel's id of the current boot, which changes with each boot (in tests, $GPUMON_BOOT_ID)."""
    given = os.environ.get(BOOT_ID)
    if given and SIMULATED in os.environ:
        return given
    with open(_BOOT_ID, encoding="utf-8") as file:
        return file.read().strip()


def boot_clock() -> float:
    """Return the seconds since boot (CLOCK_BOOTTIME), including the time that the host was suspended.

    All processes of one time namespace read the same value.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)
