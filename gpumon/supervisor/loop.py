"""The daemon's main loop. It serves descriptors, timers and callbacks of other threads. Callbacks must not block.

If a callback raises an exception, the loop continues; only the first exception of a code location is logged.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import os
import selectors
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

from gpumon.clock import boot_clock

log = logging.getLogger("gpumon.loop")

T = TypeVar("T")
Callback = Callable[[], object]


@dataclass(order=True, slots=True)
class Timer:
    """A call that is scheduled for the time `at` of the boot clock in seconds. `order` decides between equal times."""

    at: float
    order: int
    callback: Callback | None = field(compare=False)

    def cancel(self) -> None:
        """Prevent the call, unless it was already made."""
        self.callback = None


class Loop:
    """A single-threaded event loop. Other threads may call only `post`, `request` and `stop`."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[Timer] = []
        self._order = itertools.count()
        self._posted: deque[Callback] = deque()
        self._stopping = False
        self._logged: set[str] = set()
        """Code locations whose exceptions were logged: once each, because a callback may fail every second."""
        wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.watch(wake_reader, lambda: _drain(wake_reader))

    @property
    def wakeup_descriptor(self) -> int:
        """Return the descriptor for signal.set_wakeup_fd, so that a signal ends the current wait of the loop."""
        return self._wake_writer

    def watch(self, descriptor: int, callback: Callback) -> None:
        """Call `callback` whenever a read of the descriptor would not block, until `unwatch` is called or it raises."""
        self._selector.register(descriptor, selectors.EVENT_READ, callback)

    def unwatch(self, descriptor: int) -> None:
        """Remove the callback of a descriptor, if there is one."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(descriptor)

    def call_at(self, at: float, callback: Callback) -> Timer:
        """Call `callback` once, at this time of the boot clock in seconds. Return the timer, which can be cancelled."""
        timer = Timer(at, next(self._order), callback)
        heapq.heappush(self._timers, timer)
        return timer

    def call_after(self, seconds: float, callback: Callback) -> Timer:
        """Call `callback` once, after this number of seconds. Return the timer, which can be cancelled."""
        return self.call_at(boot_clock() + seconds, callback)

    def every(self, seconds: float, callback: Callback) -> None:
        """Call `callback` now, and then `seconds` after each call began. Missed calls are not made up for."""

        def repeat() -> None:
            self.call_after(seconds, repeat)
            self._call(callback)

        repeat()

    def post(self, callback: Callback) -> None:
        """Call `callback` from the loop as soon as possible. Any thread may call `post`."""
        self._posted.append(callback)
        with contextlib.suppress(BlockingIOError):  # the pipe is full, so the loop wakes up anyway
            os.write(self._wake_writer, b"\0")

    def request(self, work: Callable[[Future[T]], None]) -> Future[T]:
        """Call `work` from the loop with a future, and return that future at once. Any thread may call `request`.

        `work` sets the future's result, at once or later. If it raises, the exception is set in the future.
        """
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()  # otherwise a client that disconnects would cancel the future

        def fulfil() -> None:
            try:
                work(future)
            except Exception as error:
                if not future.done():
                    future.set_exception(error)
                raise

        self.post(fulfil)
        return future

    def run(self) -> None:
        """Run the loop until `stop` is called. Return at once if it was called before."""
        while not self._stopping:
            self.turn()
        self._stopping = False

    def turn(self) -> None:
        """Wait until a descriptor, a posted callback or a timer is due, and make all calls that are due."""
        for key, _ in self._selector.select(self._wait()):
            # An earlier callback of this turn may have removed it.
            is_watched = self._selector.get_map().get(key.fileobj) == key
            if is_watched and not self._call(key.data):
                self.unwatch(key.fd)  # otherwise the callback would fail in every turn
        while self._posted:
            self._call(self._posted.popleft())
        now = boot_clock()
        while self._timers and self._timers[0].at <= now:
            callback = heapq.heappop(self._timers).callback
            if callback is not None:
                self._call(callback)

    def _call(self, callback: Callback) -> bool:
        """Call `callback`. If it raises, return False, and log the first exception of that code location."""
        try:
            callback()
        except Exception as error:
            place = repr(traceback.extract_tb(error.__traceback__)[-1])
            if place not in self._logged:
                self._logged.add(place)
                log.exception("a task of the agent failed: report this bug")
            return False
        return True

    def stop(self) -> None:
        """Let `run` return after its current turn, or at once if it is called later. Any thread may call `stop`."""
        self._stopping = True
        self.post(lambda: None)

    def _wait(self) -> float | None:
        if self._posted:
            return 0
        return max(0.0, self._timers[0].at - boot_clock()) if self._timers else None


def _drain(descriptor: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while os.read(descriptor, 4096):
            pass
