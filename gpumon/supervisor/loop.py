"""The daemon's main loop: descriptors, timers, and work posted by other threads. Nothing called from it may block."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import selectors
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from gpumon.clock import boot_clock

Callback = Callable[[], object]


@dataclass(order=True, slots=True)
class Timer:
    """A call to come; `cancel` makes it a no-op."""

    at: float
    order: int
    callback: Callback | None = field(compare=False)

    def cancel(self) -> None:
        self.callback = None


class Loop:
    """Single-threaded. Only `post` and `stop` may be called from elsewhere."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[Timer] = []
        self._order = itertools.count()
        self._posted: deque[Callback] = deque()
        self._running = False
        wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.watch(wake_reader, lambda: _drain(wake_reader))

    @property
    def wakeup_descriptor(self) -> int:
        """For signal.set_wakeup_fd: a signal ends the current wait."""
        return self._wake_writer

    def watch(self, descriptor: int, callback: Callback) -> None:
        """Call back whenever the descriptor can be read or has been closed at its other end."""
        self._selector.register(descriptor, selectors.EVENT_READ, callback)

    def unwatch(self, descriptor: int) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(descriptor)

    def call_at(self, at: float, callback: Callback) -> Timer:
        """Call back at a moment of the boot clock."""
        timer = Timer(at, next(self._order), callback)
        heapq.heappush(self._timers, timer)
        return timer

    def call_after(self, seconds: float, callback: Callback) -> Timer:
        return self.call_at(boot_clock() + seconds, callback)

    def every(self, seconds: float, callback: Callback) -> None:
        """Call back at this interval for the life of the loop; late calls are not made up for."""

        def again() -> None:
            self.call_after(seconds, again)
            callback()

        again()

    def post(self, callback: Callback) -> None:
        """From any thread: call back from the loop, soon."""
        self._posted.append(callback)
        with contextlib.suppress(BlockingIOError):  # a full pipe wakes the loop as well as one more byte would
            os.write(self._wake_writer, b"\0")

    def run(self) -> None:
        """Until `stop`."""
        self._running = True
        while self._running:
            self.turn()

    def turn(self) -> None:
        """One wait and what it brought."""
        for key, _ in self._selector.select(self._wait()):
            if self._selector.get_map().get(key.fileobj) == key:  # not unwatched by the one before it
                key.data()
        while self._posted:
            self._posted.popleft()()
        now = boot_clock()
        while self._timers and self._timers[0].at <= now:
            callback = heapq.heappop(self._timers).callback
            if callback is not None:
                callback()

    def stop(self) -> None:
        self._running = False
        self.post(lambda: None)

    def _wait(self) -> float | None:
        if self._posted:
            return 0
        return max(0.0, self._timers[0].at - boot_clock()) if self._timers else None


def _drain(descriptor: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while os.read(descriptor, 4096):
            pass
