"""Turns a loop until a condition holds, or in a thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future

from agents import eventually

from gpumon.clock import boot_clock
from gpumon.supervisor.child_process import unreaped_pids
from gpumon.supervisor.loop import Loop


def turn_until(loop: Loop, done: Callable[[], bool], seconds: float = 60.0) -> None:
    """Turn the loop until `done` returns true. Raises AssertionError after `seconds`."""
    deadline = boot_clock() + seconds
    while not done():
        assert boot_clock() < deadline, f"condition not met within {seconds:g} s"
        loop.call_after(0.1, lambda: None)
        loop.turn()


def turn_until_equal(loop: Loop, seen: Callable[[], object], wanted: object, seconds: float = 60.0) -> None:
    """Turn the loop until both values are equal. Raises AssertionError with both after `seconds`."""
    deadline = boot_clock() + seconds
    turn_until(loop, lambda: seen() == wanted or boot_clock() >= deadline, seconds + 20)
    assert seen() == wanted


def turn_for(loop: Loop, seconds: float) -> None:
    """Turn the loop for some time, to check that something does not happen."""
    end = boot_clock() + seconds
    turn_until(loop, lambda: boot_clock() >= end, seconds + 20)


@contextlib.contextmanager
def running(loop: Loop) -> Iterator[Callable[[Callable[[], None]], None]]:
    """Run the loop in a thread, and yield a function that makes a call there and waits for its end.

    At the end of the block wait until the child processes that were started during the block have ended.
    """
    before = set(unreaped_pids)
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        yield lambda function: _call(loop, function)
    finally:
        eventually(lambda: unreaped_pids <= before)
        loop.stop()
        thread.join(timeout=30)


def _call(loop: Loop, function: Callable[[], None]) -> None:
    def work(future: Future[None]) -> None:
        function()
        future.set_result(None)

    loop.request(work).result(timeout=60)
