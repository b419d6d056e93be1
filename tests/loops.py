"""Turns a main loop until something is so."""

from __future__ import annotations

from collections.abc import Callable

from gpumon.clock import boot_clock
from gpumon.supervisor.loop import Loop


def turn_until(loop: Loop, done: Callable[[], bool], seconds: float = 60.0) -> None:
    """Raises AssertionError when it does not come to be in time."""
    deadline = boot_clock() + seconds
    while not done():
        assert boot_clock() < deadline, f"it did not come to be in {seconds:g} s"
        loop.call_after(0.1, lambda: None)
        loop.turn()


def turn_until_equal(loop: Loop, seen: Callable[[], object], wanted: object, seconds: float = 60.0) -> None:
    """Raises AssertionError with both when it does not come to be in time."""
    deadline = boot_clock() + seconds
    turn_until(loop, lambda: seen() == wanted or boot_clock() >= deadline, seconds + 20)
    assert seen() == wanted


def turn_for(loop: Loop, seconds: float) -> None:
    """Let it run for a while, to see that something does not happen."""
    end = boot_clock() + seconds
    turn_until(loop, lambda: boot_clock() >= end, seconds + 20)
