"""How a child stays tied to the daemon: it ends when its input closes, when it is asked to, or with its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable

PR_SET_PDEATHSIG = 1


END, WATCH, REST = WORDS = (b"end", b"watch", b"rest")
"""What the daemon may say on the input after the orders, a word a line."""


class Told:
    """What the daemon has said since."""

    def __init__(self, *, watch: bool = False, end: threading.Event | None = None) -> None:
        self.end = end or threading.Event()
        """It asks for an orderly end."""
        self.watch = watch
        """It wants to know at once who comes to a GPU; no longer from REST on."""

    def take(self, words: bytes) -> None:
        for word in words.split():
            if word == END:
                self.end.set()
            elif word in WORDS:
                self.watch = word == WATCH


def tie_to(parent: int, told: Told | None = None) -> None:
    """End with the parent. Leaves no signal to Python, whose own would wait for a driver call to return."""
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it went before we were tied
        os._exit(0)
    threading.Thread(target=_listen, args=(told or Told(),), name="input", daemon=True).start()


def _listen(told: Told) -> None:
    while words := os.read(0, 4096):
        told.take(words)
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
