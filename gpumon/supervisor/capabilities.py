"""Ambient capabilities: the systemd unit grants them to the daemon, and only the host child may inherit them.

Other programs must not have them. A rank of a probe runs torch, perhaps from a network file system, and the scheduler
gate runs an operator's program. With CAP_DAC_READ_SEARCH they could read every file of the host. Programs of root have
all capabilities anyway, see capabilities(7).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE, PR_CAP_AMBIENT_CLEAR_ALL = 2, 4
_STATUS = Path("/proc/thread-self/status")


def clear_ambient() -> None:
    """Clear this thread's ambient capabilities, so that programs that it starts do not inherit them.

    The thread's other capability sets are not changed.
    """
    ctypes.CDLL(None).prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)


@contextmanager
def ambient() -> Iterator[None]:
    """Let programs that this thread starts in the `with` block inherit the capabilities granted by the systemd unit."""
    sets = dict(line.split(":\t", 1) for line in _STATUS.read_text().splitlines() if line.startswith("Cap"))
    granted = int(sets["CapInh"], 16) & int(sets["CapPrm"], 16)
    for number in range(granted.bit_length()):
        if granted >> number & 1:
            ctypes.CDLL(None).prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, number, 0, 0)
    try:
        yield
    finally:
        clear_ambient()
