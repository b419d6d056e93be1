"""Turns a loop until a condition holds."""

from __future__ import annotations

from collections.abc import Callable

from gpumon.clock import boot_clock
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
