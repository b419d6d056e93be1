"""Ends a rank between two operations on SIGTERM, so that no kernel runs on its GPU when the process ends."""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Callable
from typing import Any, Optional

STOPPED = 4  # the exit status after SIGTERM
OPERATION_PATIENCE = 0.25
"""Seconds until the communicator of a blocked rank is aborted. By then all ranks have SIGTERM and report no data."""


class StopRequest:
    """The SIGTERM of this rank. A thread waits for it, because no handler runs while torch blocks the main thread."""

    def __init__(self) -> None:
        self.steps: queue.Queue[dict[str, Any]] = queue.Queue()
        self.received = False
        self.abort: Optional[Callable[[], None]] = None  # noqa: UP045 - Python 3.9
        """Function that ends the operations on the GPU; None before the ranks have joined."""
        self._between = threading.Event()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # also in the threads that this one starts
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise InterruptedError after SIGTERM. It is called before each operation and each report of its results."""
        if self.received:
            raise InterruptedError("SIGTERM")

    def finish(self) -> None:
        """Wait until the communicator is aborted. The caller must have ended its operation."""
        self._between.set()
        self._thread.join()

    def _receive(self) -> None:
        signal.sigwait({signal.SIGTERM})
        self.received = True
        if self.abort is None:
            os._exit(STOPPED)  # no kernel runs yet, and torch may take long to import
        self.steps.put({})  # ends the wait for a step
        self._between.wait(OPERATION_PATIENCE)
        self.abort()
