"""The loop, and the detection of hanging calls."""

from __future__ import annotations

import os
from concurrent.futures import Future
from functools import partial

import pytest

from gpumon.model.call_progress import CallInProgress
from gpumon.supervisor.child import MAX_STEP_SECONDS, HangDetector
from gpumon.supervisor.deadlines import Deadlines
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


DEADLINES = Deadlines()


def detector() -> HangDetector:
    """Return a detector with the deadlines of the sampler."""
    return HangDetector(DEADLINES)


def in_call(sequence: int = 1, call: str = "nvmlDeviceGetTemperature") -> CallInProgress:
    return CallInProgress(sequence=sequence, calls=sequence, since=0.0, bus_id="00000000:1B:00.0", call=call)


def is_late_after(
    hang_detector: HangDetector, call: CallInProgress, state: str, seconds: float, step: float = 0.25
) -> bool:
    """Poll the same call for these seconds, and return whether it is late at the end."""
    start = getattr(is_late_after, "now", 0.0)
    late = False
    for n in range(int(seconds / step) + 1):
        late = hang_detector.is_late(call, state, start + n * step)
    is_late_after.now = start + seconds  # type: ignore[attr-defined]
    return late


def test_a_sleeping_call_is_late_after_its_deadline() -> None:
    hang_detector = detector()

    assert not is_late_after(hang_detector, in_call(), "S", DEADLINES.call - 0.5)
    assert is_late_after(hang_detector, in_call(), "S", 1.0)


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetHandleByPciBusId"])
def test_opening_a_gpu_may_take_a_minute(call: str) -> None:
    """An initialization or a first handle lookup has a deadline of sixty seconds."""
    hang_detector = detector()

    assert not is_late_after(hang_detector, in_call(call=call), "D", DEADLINES.opening - 1)
    assert is_late_after(hang_detector, in_call(call=call), "D", 2.0)


@pytest.mark.parametrize("state", ["R", "T"])
def test_a_starved_or_stopped_child_is_not_a_hung_driver(state: str) -> None:
    assert not is_late_after(detector(), in_call(), state, 100.0)


def test_a_stopped_child_is_silent() -> None:
    """A child that a signal has stopped counts as silent, in a call or not, so that it is replaced."""
    for call in (in_call(1), in_call(2)):
        hang_detector = detector()
        is_late_after(hang_detector, call, "T", 100.0)
        assert hang_detector.idle_seconds > DEADLINES.silence


def test_a_pause_of_the_agent_adds_at_most_one_step() -> None:
    """Sixty seconds between two polls count as one step at most."""
    hang_detector = detector()
    hang_detector.is_late(in_call(), "S", 0.0)

    assert not hang_detector.is_late(in_call(), "S", 60.0)
    assert hang_detector.seconds <= MAX_STEP_SECONDS


def test_another_call_restarts_the_count() -> None:
    """A child that is in another call than at the last poll starts a new count."""
    hang_detector = detector()
    is_late_after(hang_detector, in_call(1), "S", DEADLINES.call - 0.5)

    assert not is_late_after(hang_detector, in_call(3), "S", DEADLINES.call - 0.5)


def test_a_child_outside_of_a_call_is_never_late() -> None:
    """An even sequence number means that the child is in no call."""
    assert not is_late_after(detector(), in_call(2), "S", 100.0)
