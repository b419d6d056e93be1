"""Tie a child to the daemon: it ends when its input closes, on request, or with its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable

PR_SET_PDEATHSIG = 1


END, WATCH, REST = WORDS = (b"end", b"watch", b"rest")
"""Words that the daemon may send on standard input after the orders, one a line."""


class DaemonRequests:
    """The latest requests that the daemon sent to this child."""

    def __init__(self, *, watch: bool = False, end: threading.Event | None = None) -> None:
        self.end = end or threading.Event()
        """Set when the daemon requests an orderly end."""
        self.watch = watch
        """Whether the daemon wants each new process on a GPU reported at once. WATCH sets it, REST clears it."""

    def take(self, words: bytes) -> None:
        for word in words.split():
            if word == END:
                self.end.set()
            elif word in WORDS:
                self.watch = word == WATCH


def tie_to_parent(parent: int, requests: DaemonRequests | None = None) -> None:
    """Make this process end with its parent or when standard input closes. Pass later input lines to `requests`.

    It restores the default actions of SIGINT and SIGTERM, because Python's handlers would wait for a driver call.
    """
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent ended before prctl
        os._exit(0)
    threading.Thread(target=_listen, args=(requests or DaemonRequests(),), name="input", daemon=True).start()


def _listen(requests: DaemonRequests) -> None:
    while words := os.read(0, 4096):
        requests.take(words)
    os._exit(0)


def read_orders() -> bytes:
    """Return the first line of standard input.

    It is read unbuffered, because the next lines belong to another thread.
    """
    with open(0, "rb", buffering=0, closefd=False) as unbuffered:
        return unbuffered.readline()


def reserve_stdout() -> Callable[[bytes], None]:
    """Reserve standard output for frames and return a function that writes one.

    Other output, such as that of libraries, goes to standard error.
    """
    frames = os.dup(1)
    os.dup2(2, 1)

    def write(frame: bytes) -> None:
        rest = memoryview(frame)
        while rest:
            rest = rest[os.write(frames, rest) :]

    return write
