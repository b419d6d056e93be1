"""How a child stays tied to the daemon: it ends when its input closes, or when its parent is gone."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable

PR_SET_PDEATHSIG = 1


def tie_to(parent: int) -> None:
    """End with the parent. Leaves no signal to Python, whose own would wait for a driver call to return."""
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it went before we were tied
        os._exit(0)
    threading.Thread(target=_end_with_input, name="input", daemon=True).start()


def _end_with_input() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)


def frames_only() -> Callable[[bytes], None]:
    """Keep standard output for frames: whatever a library prints goes to standard error. Returns the writer."""
    frames = os.dup(1)
    os.dup2(2, 1)

    def write(frame: bytes) -> None:
        rest = memoryview(frame)
        while rest:
            rest = rest[os.write(frames, rest) :]

    return write
