"""Connects a rank to the agent: sends it frames, takes its steps, and ends the rank between two operations on SIGTERM.

Frames have a descriptor of their own, so that output of libraries cannot mix with them. No kernel runs on the rank's
GPU when the process ends.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, Optional

from gpumon_rank.faults import Fault

PROGRESS_INTERVAL = 0.25


class Reporter:
    """Reports the progress and measurements of this rank to the agent, one JSON object (frame) per line."""

    def __init__(self, descriptor: int, fault: Fault) -> None:
        self._descriptor = descriptor
        self._fault = fault
        self._next_progress = 0.0
        self.stage = "start"

    def frame(self, **values: object) -> None:
        os.write(self._descriptor, json.dumps(values).encode() + b"\n")

    def enter(self, stage: str, **values: object) -> None:
        self.stage = stage
        self.frame(stage=stage, **values)
        self._fault.apply_at(stage)

    def progress(self, **values: object) -> None:
        """Send a frame with the current stage and these values, at most four times per second."""
        now = time.monotonic()
        if now >= self._next_progress:
            self._next_progress = now + PROGRESS_INTERVAL
            self.frame(stage=self.stage, **values)


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
