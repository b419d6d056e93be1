from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gpumon.probe.core.schedule import Schedule, Timetable


@contextmanager
def running(schedule: Schedule) -> Iterator[None]:
    schedule.start()
    try:
        yield
    finally:
        schedule.stop()


def test_the_first_run_is_early_and_the_next_an_interval_later() -> None:
    """The second run is due one interval after the first, within the jitter."""
    fired: queue.Queue[float] = queue.Queue()
    schedule = Schedule(lambda: fired.put(time.time()), Timetable(interval=3600, jitter=60, initial_delay=0.1))
    with running(schedule):
        first = fired.get(timeout=60)
        due = schedule.next_run()
    assert due is not None
    assert 3600 - 61 <= due - first <= 3600 + 61
    assert fired.empty()


def test_a_started_schedule_has_the_time_of_the_next_run() -> None:
    """A started schedule has the wall time of the next run; a stopped one has none."""
    schedule = Schedule(lambda: None, Timetable(interval=3600, jitter=0, initial_delay=100))
    assert schedule.next_run() is None
    before = time.time()
    with running(schedule):
        due = schedule.next_run()
        assert due is not None
        assert before + 100 <= due <= time.time() + 100
    assert schedule.next_run() is None


def test_a_run_that_is_brought_forward_restarts_the_interval() -> None:
    """A run that is brought forward replaces the next one, and the interval starts from it."""
    fired: queue.Queue[float] = queue.Queue()
    schedule = Schedule(lambda: fired.put(time.time()), Timetable(interval=3600, jitter=0, initial_delay=1000))
    schedule.bring_forward()
    with running(schedule):
        schedule.bring_forward()
        first = fired.get(timeout=60)
        due = schedule.next_run()
    assert due is not None
    assert due - first == pytest.approx(3600, abs=30)
    assert fired.empty()


def test_a_new_timetable_replaces_the_old_one() -> None:
    """A new timetable replaces the old one."""
    schedule = Schedule(lambda: None, Timetable(interval=3600, jitter=0, initial_delay=100))
    with running(schedule):
        schedule.apply(Timetable(interval=60, jitter=0, initial_delay=1000))
        due = schedule.next_run()
    assert due is not None
    assert due - time.time() > 900


@pytest.mark.parametrize("step", [86_400 * 365, -86_400])
def test_a_step_of_the_wall_clock_moves_no_run(monkeypatch: pytest.MonkeyPatch, step: float) -> None:
    """A step of the wall clock neither advances nor delays the next run."""
    schedule = Schedule(lambda: None, Timetable(interval=3600, jitter=0, initial_delay=100))
    with running(schedule):
        before = schedule.next_run()
        wall = time.time
        monkeypatch.setattr(time, "time", lambda: wall() + step)
        schedule.follow_clock()
        after = schedule.next_run()
        monkeypatch.undo()
    assert before is not None
    assert after == pytest.approx(before + step, abs=1.0)


class MessageCollector(logging.Handler):
    """A handler that collects logged messages."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: queue.Queue[str] = queue.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        self.queue.put(record.getMessage())


@pytest.fixture
def messages() -> Iterator[queue.Queue[str]]:
    handler, log = MessageCollector(), logging.getLogger("gpumon.probe")
    log.addHandler(handler)
    yield handler.queue
    log.removeHandler(handler)


def test_a_failing_callback_is_logged(messages: queue.Queue[str]) -> None:
    """An error of the callback is logged, and the schedule continues."""

    def fail() -> None:
        raise OSError("no loop")

    with running(Schedule(fail, Timetable(interval=3600, jitter=0, initial_delay=0))):
        assert messages.get(timeout=60) == "scheduled probe: error"


def test_an_overrun_is_logged(messages: queue.Queue[str]) -> None:
    """A callback that has not returned when the next is due is logged."""
    release = threading.Event()

    def hang() -> None:
        release.wait()

    with running(Schedule(hang, Timetable(interval=0.2, jitter=0, initial_delay=0))):
        try:
            assert messages.get(timeout=60) == "scheduled probe: overrun"
        finally:
            release.set()
