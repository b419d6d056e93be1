"""Times one operation, by CUDA events on a GPU and by the monotonic clock on the CPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


class Stopwatch:
    """Times operations. On a GPU it times the work on the current stream, without the time to queue it."""

    def __init__(self, torch: Any, *, on_gpu: bool) -> None:
        self._events = tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)) if on_gpu else None

    def time(self, operation: Callable[[], None]) -> float:
        """Run the operation and return its duration in seconds."""
        if self._events is None:
            begun = time.monotonic()
            operation()
            return time.monotonic() - begun
        start, stop = self._events
        start.record()
        operation()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) / 1e3
