"""Detects driver calls that do not return.

Only time in which the child was observed waiting in the call counts. Therefore a paused host, a stepped clock or a
child without CPU time is not taken for a hung driver.
"""

from __future__ import annotations

from collections.abc import Callable

from gpumon.model.call_progress import CallInProgress

WAITING = frozenset("SD")
"""States of a waiting process. Such a process is neither runnable (R) nor stopped (T)."""
STOPPED = "T"
"""Process state after a stop signal. The calls of a stopped child do not become late. A child that stays stopped
is replaced because it sends no frames.
"""
MAX_STEP_SECONDS = 1.0
"""Maximum seconds that one inspection adds to a waiting time. If more time has passed, the daemon itself was paused."""


class HangDetector:
    """Measures how long a child waits in its current call (`seconds`) and how long it is idle (`idle_seconds`)."""

    def __init__(self, deadline: Callable[[CallInProgress], float]) -> None:
        """Create the detector. `deadline` returns the seconds after which a call is late."""
        self._deadline = deadline
        self._sequence = 0
        self._inspected_at: float | None = None
        self.seconds = 0.0
        """Seconds for which the child was observed waiting in its current call."""
        self.idle_seconds = 0.0
        """Seconds for which the child was observed stopped, or waiting outside of calls. FramedChild resets it at
        each frame.
        """

    def is_late(self, call: CallInProgress, state: str, now: float) -> bool:
        """Process one inspection of the child. Return True if it has been waiting in `call` for at least the deadline.

        `call` is the current or last call, `state` the process state in /proc/<pid>/stat (empty if the file cannot
        be read), `now` the time on the boot clock. The time since the previous inspection, at most MAX_STEP_SECONDS,
        counts as spent in `state`.
        """
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
