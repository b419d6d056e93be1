"""Connect a child process to the daemon.

The functions read the orders (the configuration) and requests of the daemon from standard input, reserve standard
output for messages, and end the child when its parent ends or its standard input closes.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

from gpumon import __version__, log
from gpumon.model import frame
from gpumon.model.orders import Orders
from gpumon.model.snapshot import Hello, Logged

OrdersT = TypeVar("OrdersT", bound=Orders)

PR_SET_PDEATHSIG = 1

END, WATCH, REST, PIDS = b"end", b"watch", b"rest", b"pids"
"""Requests that the daemon may write to a child's standard input, one per line, after the orders (the configuration).

END requests an orderly end. WATCH requests that new processes on GPUs are reported at once. REST cancels WATCH. PIDS is
followed by the ids of the processes on the GPUs, of which the host child reads who owns them.
"""


class DaemonRequests:
    """The latest requests that the daemon sent to this child process on its standard input."""

    def __init__(self, *, watch: bool = False, end: threading.Event | None = None) -> None:
        self.end = end or threading.Event()
        """Set when the daemon requests an orderly end."""
        self.watch = watch
        """Whether the daemon wants each new process on a GPU reported at once: True after WATCH, False after REST."""
        self.pids: tuple[str, ...] = ()

    def take(self, line: bytes) -> None:
        """Note one request. Another line, such as one that was cut off, changes nothing."""
        word, *arguments = line.split() or [b""]
        if word == END:
            self.end.set()
        elif word == PIDS:
            self.pids = tuple(argument.decode(errors="replace") for argument in arguments)
        elif word in {WATCH, REST}:
            self.watch = word == WATCH


class SendMessages(Protocol):
    """Sends messages to the daemon in one write, because the daemon may end this child after the first of them."""

    def __call__(self, *messages: frame.Frame) -> None: ...


Work = Callable[[OrdersT, SendMessages, DaemonRequests], int]
"""Function that does the work of a child until the daemon requests the end, and returns the exit code."""


def run(orders_type: type[OrdersT], work: Work[OrdersT]) -> int:
    """Read the orders, `work` until the daemon requests the end or closes standard input, and return the exit code."""
    with open(0, "rb", buffering=0, closefd=False) as unbuffered:  # another thread reads the next lines
        orders = orders_type.decode(unbuffered.readline())
    pipe = os.dup(1)
    os.dup2(2, 1)  # other output, such as that of libraries, goes to standard error
    requests = DaemonRequests(watch=orders.watch)
    tie_to_parent(orders.parent, requests)
    log.configure(level=orders.log_level, format=orders.log_format)

    encoder = frame.Encoder()

    def send(*messages: frame.Frame) -> None:
        logged = log.take_counts()
        lines = b"".join(map(encoder.encode, (*messages, Logged(messages=logged)) if logged else messages))
        rest = memoryview(lines)
        while rest:
            rest = rest[os.write(pipe, rest) :]

    send(Hello(version=__version__, schema=frame.SCHEMA, pid=os.getpid()))
    try:
        return work(orders, send, requests)
    except BrokenPipeError:
        logging.getLogger("gpumon.collectors").info("the daemon has ended")
        return 0


def tie_to_parent(parent: int, requests: DaemonRequests) -> None:
    """Make this process end when its parent ends or its standard input closes. Pass further input to `requests`.

    `parent`: expected process id of the parent. If this process has another parent, end it at once. Restore the default
    actions of SIGINT and SIGTERM, because Python's handlers would wait for a driver call to return.
    """
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent ended before prctl
        os._exit(0)
    threading.Thread(target=_listen, args=(requests,), name="input", daemon=True).start()


def _listen(requests: DaemonRequests) -> None:
    with open(0, "rb", closefd=False) as lines:
        for line in lines:
            requests.take(line)
    os._exit(0)
