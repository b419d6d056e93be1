"""The main loop: callbacks that are unwatched, callbacks that raise, and a stop before the run."""

from __future__ import annotations

import os
from concurrent.futures import Future
from functools import partial

import pytest

from gpumon.supervisor.loop import Loop


def test_a_descriptor_unwatched_in_this_turn_is_not_called() -> None:
    """If two descriptors are ready and the first callback unwatches the second, only the first is called."""
    loop, called = Loop(), list[int]()
    pipes = [os.pipe(), os.pipe()]
    readers = [reader for reader, _ in pipes]

    def close_the_other(own: int) -> None:
        called.append(own)
        for reader in readers:
            loop.unwatch(reader)
            os.close(reader)

    for reader, writer in pipes:
        loop.watch(reader, partial(close_the_other, reader))
        os.write(writer, b"x")
    loop.turn()

    assert len(called) == 1
    for _, writer in pipes:
        os.close(writer)


def test_an_error_of_a_callback_does_not_end_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    """Errors of posted calls, timers and descriptors are logged once, and the other callbacks are called."""
    loop, called = Loop(), list[str]()
    reader, writer = os.pipe()

    def fail() -> None:
        called.append("failed")
        raise OverflowError("Python int too large to convert to C int")

    loop.watch(reader, fail)
    os.write(writer, b"x")
    loop.post(fail)
    loop.call_after(0.0, fail)
    loop.every(0.0, lambda: called.append("regular"))
    loop.post(lambda: called.append("posted"))
    future: Future[None] = loop.request(lambda _: fail())
    loop.turn()
    loop.turn()

    assert called.count("failed") == 4
    assert {"regular", "posted"} < set(called)
    assert isinstance(future.exception(timeout=0), OverflowError)
    assert [record.message for record in caplog.records] == ["a task of the agent failed: report this bug"]
    os.close(reader)
    os.close(writer)


def test_a_stop_before_the_run_ends_the_run() -> None:
    """SIGTERM may arrive while the agent starts. The next run is not affected."""
    loop, called = Loop(), list[str]()
    loop.stop()
    loop.run()
    loop.post(lambda: called.append("second run"))
    loop.post(loop.stop)
    loop.run()
    assert called == ["second run"]
