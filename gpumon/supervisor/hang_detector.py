"""When a driver call is late.

A call is late when it has been *seen* not to return for long enough, by a child that had its chance: a host that was
paused, a clock that was stepped or a child starved of processor time is not a hung driver.
"""

from __future__ import annotations

from collections.abc import Callable

from gpumon.model.call_progress import CallInProgress

CALL_SECONDS = 2.0
OPENING_SECONDS = 60.0
"""Without persistence mode a GPU takes 1 to 3 s to come up, sixteen of them as much longer."""
OPENING = frozenset({"nvmlInit", "nvmlDeviceGetHandleByPciBusId"})
"""As the call page names them; a lookup that was tried before is not among them."""

WAITING = frozenset("SD")
"""States of a process that waits for something: neither runnable (R) nor stopped by somebody (T)."""
LONGEST_LOOK = 1.0
"""Seconds that one look can add: when more time has passed the daemon itself was held up."""


def deadline(call: CallInProgress) -> float:
    """Seconds after which this call is late."""
    return OPENING_SECONDS if call.call in OPENING else CALL_SECONDS


class HangDetector:
    """Adds up how long one child's current call has been seen waiting."""

    def __init__(self, deadline: Callable[[CallInProgress], float] = deadline) -> None:
        self._deadline = deadline
        self._sequence = 0
        self._looked_at: float | None = None
        self.seconds = 0.0
        self.idle_seconds = 0.0
        """How long it has been seen waiting in no call at all; whoever hears of it sets this back."""

    def look(self, call: CallInProgress, state: str, now: float) -> bool:
        """Whether the call is late now. `state` is the child's letter in /proc/<pid>/stat."""
        elapsed = min(now - self._looked_at, LONGEST_LOOK) if self._looked_at is not None else 0.0
        self._looked_at = now
        if not call.running or call.sequence != self._sequence:
            self._sequence = call.sequence
            self.seconds = 0.0
        elif state in WAITING:
            self.seconds += elapsed
        if not call.running and state in WAITING:
            self.idle_seconds += elapsed
        return self.seconds >= self._deadline(call)
