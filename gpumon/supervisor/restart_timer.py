"""Timer that starts a child again, with a delay that grows with each crash."""

from __future__ import annotations

from collections.abc import Callable

from gpumon.supervisor.deadlines import Deadlines
from gpumon.supervisor.loop import Loop, Timer


class RestartTimer:
    """Timer that calls `start`. The delay after a crash doubles with each crash, up to `Deadlines.last_restart`."""

    def __init__(self, loop: Loop, deadlines: Deadlines, start: Callable[[], None]) -> None:
        self._loop = loop
        self._deadlines = deadlines
        self._start = start
        self._timer: Timer | None = None
        self.crash_delay = deadlines.first_restart
        """Delay in seconds between the next crash and the restart after it."""

    def schedule(self, delay: float) -> None:
        """Start the child after this delay in seconds. A start that was scheduled before is cancelled."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_after(delay, self._start)

    def next_crash_delay(self) -> float:
        """Return the delay in seconds of the restart after a crash, and double the delay for the next crash."""
        delay = self.crash_delay
        self.crash_delay = min(2 * delay, self._deadlines.last_restart)
        return delay

    def note_age(self, age: float) -> None:
        """Reset the crash delay if the ended child's `age` in seconds exceeds `steady`. Its end is then a new fault."""
        if age > self._deadlines.steady:
            self.crash_delay = self._deadlines.first_restart
