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


def test_the_first_run_comes_soon_and_then_the_interval_holds() -> None:
    """After the first call the next run is an interval away, give or take the jitter."""
    fired: queue.Queue[float] = queue.Queue()
    schedule = Schedule(lambda: fired.put(time.time()), Timetable(interval=3600, jitter=60, first_after=0.1))
    with running(schedule):
        first = fired.get(timeout=60)
        due = schedule.next_run()
    assert due is not None
    assert 3600 - 61 <= due - first <= 3600 + 61
    assert fired.empty()


def test_it_says_when_the_next_run_is() -> None:
    """The wall time of the first run is known before it comes; a schedule that is not started has none."""
    schedule = Schedule(lambda: None, Timetable(interval=3600, jitter=0, first_after=100))
    assert schedule.next_run() is None
    before = time.time()
    with running(schedule):
        due = schedule.next_run()
        assert due is not None
        assert before + 100 <= due <= time.time() + 100
    assert schedule.next_run() is None


def test_a_run_that_is_brought_forward_begins_the_interval_anew() -> None:
    """It comes now, in place of the one that was due later."""
    fired: queue.Queue[float] = queue.Queue()
    schedule = Schedule(lambda: fired.put(time.time()), Timetable(interval=3600, jitter=0, first_after=1000))
    schedule.bring_forward()
    with running(schedule):
        schedule.bring_forward()
        first = fired.get(timeout=60)
        due = schedule.next_run()
    assert due is not None
    assert due - first == pytest.approx(3600, abs=30)
    assert fired.empty()


def test_a_new_timetable_replaces_the_old_one() -> None:
    """Applying a timetable leaves one schedule, the new one."""
    schedule = Schedule(lambda: None, Timetable(interval=3600, jitter=0, first_after=100))
    with running(schedule):
        schedule.apply(Timetable(interval=60, jitter=0, first_after=1000))
        due = schedule.next_run()
    assert due is not None
    assert due - time.time() > 900


@pytest.mark.parametrize("step", [86_400 * 365, -86_400])
def test_a_step_of_the_wall_clock_moves_no_run(monkeypatch: pytest.MonkeyPatch, step: float) -> None:
    """A clock that was wrong at boot neither brings the next run forward nor puts it off."""
    schedule = Schedule(lambda: None, Timetable(interval=3600, jitter=0, first_after=100))
    with running(schedule):
        before = schedule.next_run()
        wall = time.time
        monkeypatch.setattr(time, "time", lambda: wall() + step)
        schedule.follow_clock()
        after = schedule.next_run()
        monkeypatch.undo()
    assert before is not None
    assert after == pytest.approx(before + step, abs=1.0)


class Troubles(logging.Handler):
    """Collects the troubles that are logged."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: queue.Queue[str] = queue.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        self.queue.put(record.getMessage())


@pytest.fixture
def troubles() -> Iterator[queue.Queue[str]]:
    handler, log = Troubles(), logging.getLogger("gpumon.probe")
    log.addHandler(handler)
    yield handler.queue
    log.removeHandler(handler)


def test_a_call_that_fails_is_logged(troubles: queue.Queue[str]) -> None:
    """An error of the callback is logged, and the schedule continues."""

    def fail() -> None:
        raise OSError("no loop")

    with running(Schedule(fail, Timetable(interval=3600, jitter=0, first_after=0))):
        assert troubles.get(timeout=60) == "scheduled probe: error"


def test_an_overrun_is_logged(troubles: queue.Queue[str]) -> None:
    """A callback that has not returned when the next is due is logged."""
    release = threading.Event()

    def hang() -> None:
        release.wait()

    with running(Schedule(hang, Timetable(interval=0.2, jitter=0, first_after=0))):
        try:
            assert troubles.get(timeout=60) == "scheduled probe: overrun"
        finally:
            release.set()
