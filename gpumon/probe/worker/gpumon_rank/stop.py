"""Ends a rank between two operations on SIGTERM, so that no kernel runs on its GPU when the process ends."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Optional

STOPPED = 4
"""Exit status of a rank that ended on SIGTERM."""
OPERATION_PATIENCE = 0.25
"""Seconds in which the operation in progress may end before the communicator is aborted. Other ranks have SIGTERM then:
they do not report what the abort leaves in their buffers.
"""


class Stopped(Exception):  # noqa: N818 - not an error
    """Raised between two operations of a rank that has got SIGTERM."""


class StopRequest:
    """The SIGTERM of this rank. A thread waits for it, because handlers do not run while torch blocks the main thread.

    `wake`: function that ends the main thread's wait for a step.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self.received = False
        self.abort: Optional[Callable[[], None]] = None  # noqa: UP045 - Python 3.9
        """Function that ends operations which wait for other ranks; None before the ranks have joined."""
        self._wake = wake
        self._between = threading.Event()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # in this thread and all that it starts
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise Stopped after SIGTERM. Call this method before each operation and before its results are reported."""
        if self.received:
            raise Stopped

    def finish(self) -> None:
        """Wait until the communicator is aborted. Call this method when no operation is in progress."""
        self._between.set()
        self._thread.join()

    def _receive(self) -> None:
        signal.sigwait({signal.SIGTERM})
        self.received = True
        if self.abort is None:
            os._exit(STOPPED)  # no kernel has been started, and torch may take long to import
        self._wake()
        self._between.wait(OPERATION_PATIENCE)
        self.abort()
