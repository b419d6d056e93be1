"""Connect a child process to the daemon.

The functions read the orders (the configuration) and requests of the daemon from standard input, reserve standard
output for messages, and end the child when its parent ends or its standard input closes.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable

PR_SET_PDEATHSIG = 1


END, WATCH, REST = WORDS = (b"end", b"watch", b"rest")
"""Requests that the daemon may write to a child's standard input, one per line, after the orders (the configuration).

END requests an orderly end. WATCH requests that new processes on GPUs are reported at once. REST cancels WATCH.
"""


class DaemonRequests:
    """The latest requests that the daemon sent to this child process on its standard input."""

    def __init__(self, *, watch: bool = False, end: threading.Event | None = None) -> None:
        self.end = end or threading.Event()
        """Set when the daemon requests an orderly end."""
        self.watch = watch
        """Whether the daemon wants each new process on a GPU reported at once: True after WATCH, False after REST."""

    def take(self, words: bytes) -> None:
        for word in words.split():
            if word == END:
                self.end.set()
            elif word in WORDS:
                self.watch = word == WATCH


def tie_to_parent(parent: int, requests: DaemonRequests | None = None) -> None:
    """Make this process end when its parent ends or its standard input closes. Pass further input to `requests`.

    `parent`: expected process id of the parent. If this process has another parent, end it at once. Restore the default
    actions of SIGINT and SIGTERM, because Python's handlers would wait for a driver call to return.
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
    """Return the first line of standard input, which has the orders for this child as JSON.

    The read is unbuffered, because another thread reads the next lines.
    """
    with open(0, "rb", buffering=0, closefd=False) as unbuffered:
        return unbuffered.readline()


def reserve_stdout() -> Callable[[bytes], None]:
    """Reserve standard output for messages to the daemon, and return a function that writes one encoded message.

    Redirect other output, such as that of libraries, to standard error.
    """
    frames = os.dup(1)
    os.dup2(2, 1)

    def write(frame: bytes) -> None:
        rest = memoryview(frame)
        while rest:
            rest = rest[os.write(frames, rest) :]

    return write
