"""Which boot of the host this is."""

from __future__ import annotations

import os
from pathlib import Path

BOOT_ID = "GPUMON_BOOT_ID"
"""Environment, for tests: in place of the kernel's. Another one than before means that the host was rebooted."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Another one after each boot."""
    return os.environ.get(BOOT_ID) or _BOOT_ID.read_text(encoding="ascii").strip()
