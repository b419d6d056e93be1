"""Detects driver calls that do not return.

Only the time counts in which a child was observed waiting in the call. A paused host, a stepped clock or a starved
child is not a hung driver.
"""

from __future__ import annotations

from collections.abc import Callable

from gpumon.model.call_progress import CallInProgress

WAITING = frozenset("SD")
"""Process states that wait: neither runnable (R) nor stopped (T)."""
STOPPED = "T"
"""Stopped by a signal. Its call is not late, but the child is silent: it is replaced as one that sends nothing."""
MAX_STEP_SECONDS = 1.0
"""Time that one inspection can add. If more has passed, the daemon itself was paused."""


class HangDetector:
    """Measures how long a child has been waiting in its current call."""

    def __init__(self, deadline: Callable[[CallInProgress], float]) -> None:
        """`deadline` returns the seconds after which a call is late."""
        self._deadline = deadline
        self._sequence = 0
        self._inspected_at: float | None = None
        self.seconds = 0.0
        """Time that the current call was observed waiting."""
        self.idle_seconds = 0.0
        """Time that it was observed stopped, or waiting outside of calls. The receiver of its frames resets it."""

    def is_late(self, call: CallInProgress, state: str, now: float) -> bool:
        """Inspect the child and return whether its call is late. `state` is its letter in /proc/<pid>/stat."""
        elapsed = min(now - self._inspected_at, MAX_STEP_SECONDS) if self._inspected_at is not None else 0.0
        self._inspected_at = now
        if not call.running or call.sequence != self._sequence:
            self._sequence = call.sequence
            self.seconds = 0.0
        elif state in WAITING:
            self.seconds += elapsed
        if state == STOPPED or (not call.running and state in WAITING):
            self.idle_seconds += elapsed
        return self.seconds >= self._deadline(call)
