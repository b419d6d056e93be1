"""Which boot of the host this is."""

from __future__ import annotations

import os

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
