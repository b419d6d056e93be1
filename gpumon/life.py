"""How a child stays tied to the daemon: it ends when its input closes, when it is asked to, or with its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable

PR_SET_PDEATHSIG = 1


def tie_to(parent: int) -> threading.Event:
    """End with the parent. Leaves no signal to Python, whose own would wait for a driver call to return.

    The event is set when the daemon asks on the input for an orderly end: whatever follows the orders is that.
    """
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it went before we were tied
        os._exit(0)
    asked = threading.Event()
    threading.Thread(target=_end_with_input, args=(asked,), name="input", daemon=True).start()
    return asked


def _end_with_input(asked: threading.Event) -> None:
    while os.read(0, 4096):
        asked.set()
    os._exit(0)


def first_line() -> bytes:
    """The orders, and not a byte more: the next line is for who watches the input."""
    with open(0, "rb", buffering=0, closefd=False) as unbuffered:
        return unbuffered.readline()


def frames_only() -> Callable[[bytes], None]:
    """Keep standard output for frames: whatever a library prints goes to standard error. Returns the writer."""
    frames = os.dup(1)
    os.dup2(2, 1)

    def write(frame: bytes) -> None:
        rest = memoryview(frame)
        while rest:
            rest = rest[os.write(frames, rest) :]

    return write
