"""Schedules the next start of a child."""

from __future__ import annotations

from collections.abc import Callable

from gpumon.supervisor.deadlines import Deadlines
from gpumon.supervisor.loop import Loop, Timer


class RestartTimer:
    """Timer of the next start, with a delay for crashes that doubles with each of them."""

    def __init__(self, loop: Loop, deadlines: Deadlines, start: Callable[[], None]) -> None:
        self._loop = loop
        self._deadlines = deadlines
        self._start = start
        self._timer: Timer | None = None
        self.crash_delay = deadlines.first_restart
        """Seconds."""

    def schedule(self, delay: float) -> None:
        """Start after this delay, in place of the start that was scheduled before."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_after(delay, self._start)

    def next_crash_delay(self) -> float:
        """Return the delay of a restart after a crash, and double it for the next one."""
        delay = self.crash_delay
        self.crash_delay = min(2 * delay, self._deadlines.last_restart)
        return delay

    def note_age(self, age: float) -> None:
        """Reset the delay if the child that has ended was old enough: its end is a new fault."""
        if age > self._deadlines.steady:
            self.crash_delay = self._deadlines.first_restart
