from __future__ import annotations

import logging
import queue
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

import pytest

from gpumon.probe.core.timetable import Timetable, check_schedule, parse_schedule
from gpumon.runner.scheduler import Schedule


@contextmanager
def running(schedule: Schedule) -> Iterator[None]:
    schedule.start()
    try:
        yield
    finally:
        schedule.stop()


def every(seconds: float, *, jitter: float = 0.0, initial_delay: float = 0.0) -> dict[str, Timetable]:
    return {"allreduce": Timetable(interval=seconds, jitter=jitter, initial_delay=initial_delay)}


def test_the_first_run_is_early_and_the_next_an_interval_later() -> None:
    """The second run is due one interval after the first, within the jitter."""
    fired: queue.Queue[float] = queue.Queue()
    schedule = Schedule(lambda _: fired.put(time.time()), every(3600, jitter=60, initial_delay=0.1))
    with running(schedule):
        first = fired.get(timeout=60)
        due = schedule.next_runs()["allreduce"]
    assert 3600 - 1 <= due - first <= 3600 + 61
    assert fired.empty()


def test_each_probe_has_a_schedule_of_its_own() -> None:
    """An interval begins with the initial delay, crontab text with its next time; a stopped schedule has none."""
    sundays = Timetable(cron="0 3 * * sun", jitter=60)
    schedule = Schedule(lambda _: None, {**every(3600, initial_delay=100), "copy": sundays})
    assert not schedule.next_runs()
    before = time.time()
    with running(schedule):
        due = schedule.next_runs()
        assert before + 100 <= due["allreduce"] <= time.time() + 100
        copy = datetime.fromtimestamp(due["copy"]).astimezone()
        assert (copy.isoweekday(), copy.hour, copy.minute) in {(7, 3, 0), (7, 3, 1)}
    assert not schedule.next_runs()


def test_a_run_that_is_brought_forward_restarts_the_interval() -> None:
    """A run that is brought forward replaces the next one, and the interval starts from it."""
    fired: queue.Queue[str] = queue.Queue()
    schedule = Schedule(fired.put, every(3600, initial_delay=1000))
    schedule.bring_forward("allreduce")
    with running(schedule):
        schedule.bring_forward("allreduce")
        assert fired.get(timeout=60) == "allreduce"
        due = schedule.next_runs()["allreduce"]
    assert due - time.time() == pytest.approx(3600, abs=30)
    assert fired.empty()


def test_new_timetables_replace_those_that_differ() -> None:
    """A probe that is no longer scheduled has no next run, and the next run of an unchanged one does not move."""
    schedule = Schedule(lambda _: None, {**every(3600, initial_delay=100), "copy": Timetable(interval=60)})
    with running(schedule):
        before = schedule.next_runs()["allreduce"]
        schedule.apply({**every(3600, initial_delay=100), "alltoall": Timetable(interval=60, initial_delay=1000)})
        due = schedule.next_runs()
        schedule.apply(every(60, initial_delay=1000))
        assert schedule.next_runs()["allreduce"] - time.time() > 900
    assert due.keys() == {"allreduce", "alltoall"}
    assert due["allreduce"] == before


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("6h", 21600), ("0 3 * * sun", 7 * 86400), ("30 2 * * mon-fri", 3 * 86400), ("0 0 1 * *", 31 * 86400)],
)
def test_the_longest_time_between_two_runs_is_known(text: str, seconds: float) -> None:
    """A run counts as missing only after it."""
    assert parse_schedule(check_schedule(text)).max_interval == pytest.approx(seconds, abs=3600)  # summer time


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("6", "interval such as 6h"),
        ("9s", "from 10s to 366d"),
        ("0 3 * *", "crontab text such as '0 3 * * sun'"),
        ("0 25 * * sun", "25"),
        ("0 3 * * 0", "must name weekdays"),
        ("0 3 30 feb *", "recurs"),
    ],
)
def test_an_invalid_schedule_is_refused_with_the_remedy(text: str, reason: str) -> None:
    """The error states what is valid."""
    with pytest.raises(ValueError, match=re.escape(reason)):
        check_schedule(text)


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
    def fail(_: str) -> None:
        raise OSError("no loop")

    with running(Schedule(fail, every(3600))):
        assert messages.get(timeout=60) == "scheduled probe: error"


def test_an_overrun_is_logged(messages: queue.Queue[str]) -> None:
    release = threading.Event()

    def hang(_: str) -> None:
        release.wait()

    with running(Schedule(hang, every(0.2))):
        try:
            assert messages.get(timeout=60) == "scheduled probe: overrun"
        finally:
            release.set()
