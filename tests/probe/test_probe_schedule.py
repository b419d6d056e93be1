"""When a run of a probe is due."""

from __future__ import annotations

import logging
import queue
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime

import example_node as example
import pytest
from changed_report import changed, new_report
from each_case import each_case

from gpumon.health.node_health import Health
from gpumon.health.verdict import FAIL, Action, Clearance, Verdict, VerdictChange, VerdictTransition
from gpumon.model.gpu import Gpu
from gpumon.model.gpu_state import GpuState
from gpumon.model.instant import Instant
from gpumon.model.node import Node
from gpumon.probe.core.preflight import GpuUse, PreflightFacts
from gpumon.probe.core.settings import Timetable, check_schedule, parse_schedule
from gpumon.probe.core.state import ProbeState
from gpumon.runner.scheduler import (
    IDLE_INTERVAL,
    REPAIR_INTERVAL,
    SCHEDULER_PATIENCE,
    START_INTERVAL,
    Schedule,
    is_due_early,
    pause,
)
from gpumon.state.report import Report


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


POLLED = new_report(node=Node(snapshot_timestamp_seconds=1.0), restored=True)
GPUS = tuple(GpuUse(index=n, uuid=f"GPU-{n}", processes=0.0, idle_seconds=480.0) for n in range(2))
IDLE = PreflightFacts(gpus=GPUS, expected=2, scheduled=True, min_idle_seconds=480.0)
SOON = replace(IDLE, min_idle_seconds=600.0)


@each_case(
    ("report", "now", "waited", "seconds"),
    [
        (POLLED, IDLE, 0.0, None),
        (changed(POLLED, node=Node()), IDLE, 3600.0, START_INTERVAL),
        (changed(POLLED, restored=False), IDLE, 0.0, START_INTERVAL),
        (POLLED, replace(IDLE, schedulers=None), 1.0, START_INTERVAL),
        (POLLED, replace(IDLE, schedulers=None), SCHEDULER_PATIENCE + 1, None),
        (POLLED, replace(IDLE, schedulers=None, gated=True), 0.0, None),
        (POLLED, replace(IDLE, schedulers=None, simulated=True), 0.0, None),
        (POLLED, SOON, 0.0, IDLE_INTERVAL),
        (POLLED, replace(SOON, min_idle_seconds=482.0), 0.0, 2.0),
        (POLLED, SOON, 600.0 + SCHEDULER_PATIENCE + 1, None),
        (POLLED, replace(SOON, gpus=(replace(GPUS[0], processes=1.0), GPUS[1])), 0.0, None),
        (POLLED, replace(SOON, enabled=False), 0.0, None),
    ],
)
def test_a_due_run_waits_for_start_up_and_idleness(
    report: Report, now: PreflightFacts, waited: float, seconds: float | None
) -> None:
    """A due run waits for the first poll, the store, the scheduler detection and idleness, not for the end of a job."""
    assert pause(report, now, waited) == seconds


WALL, AT = 1_000_000.0, 5000.0
RUN = replace(
    example.run(),
    started=WALL - 2000.0,
    duration_seconds=10.0,
    ranks=2,
    conditions=replace(example.run().conditions, gpus=("GPU-0", "GPU-1"), host_gpus=2),
)
FREE = replace(IDLE, gpus=tuple(replace(gpu, idle_seconds=600.0) for gpu in GPUS), min_idle_seconds=600.0)
LOST = Verdict(
    check="gpu_lost",
    level=FAIL,
    reason="",
    action=Action.RESET,
    device="GPU-1",
    raised=Instant("", 0.0, 0.0),
    last_active=Instant("", 0.0, 0.0),
)


def report_after_repair(*, begun: float | None = AT - 600.0, uuid: str = "GPU-1", **probe: object) -> Report:
    """Return a Report of a node whose second GPU was reset ten minutes ago, after its last run."""
    gpus = (gpu_state(0, "GPU-0", None), gpu_state(1, uuid, begun))
    return changed(POLLED, gpus=gpus, probe=replace(ProbeState(history=(RUN,), ran=(RUN,)), **probe))  # type: ignore[arg-type]


def gpu_state(index: int, uuid: str, begun: float | None) -> GpuState:
    return GpuState(bus_id=str(index), uuid=uuid, index=index, gpu=Gpu(), reset_at=begun)


def health_with_clearing(way: Clearance) -> Health:
    transition = VerdictTransition(
        verdict=LOST, change=VerdictChange.CLEARED, time=Instant("", AT - 600, WALL - 600), cleared_by=way
    )
    return Health(history=(transition,))


PARTIAL = replace(
    FREE,
    partial=True,
    gpus=(
        *FREE.gpus,
        *(replace(FREE.gpus[0], index=n, uuid=f"GPU-{n}", processes=float(n == 2)) for n in (2, 3)),
    ),
    expected=4,
)
"""A job uses the third of four GPUs."""
SKIP = replace(RUN, outcome="skipped", reason="busy")
FAILED = replace(RUN, outcome="failed", started=WALL - 300.0)
PART = replace(RUN, started=WALL - 60.0, ranks=1, conditions=replace(RUN.conditions, gpus=("GPU-0",)))
"""A partial run without the GPU that was reset."""


@each_case(
    ("report", "now", "early"),
    [
        (report_after_repair(), FREE, True),
        (report_after_repair(begun=None), FREE, False),
        (report_after_repair(begun=AT - 3000.0), FREE, False),
        (report_after_repair(begun=None, uuid="GPU-9"), FREE, True),
        (replace(report_after_repair(begun=None), health=health_with_clearing(Clearance.OPERATOR)), FREE, True),
        (replace(report_after_repair(begun=None), health=health_with_clearing(Clearance.RECOVERED)), FREE, False),
        (report_after_repair(ran=()), FREE, False),
        (report_after_repair(ran=(RUN, FAILED), history=(FAILED,)), FREE, False),
        (report_after_repair(history=(replace(SKIP, started=WALL - 60.0),)), FREE, False),
        (report_after_repair(ran=(RUN, PART), history=(PART,)), FREE, False),
        (report_after_repair(ran=(RUN, PART), history=(replace(PART, started=WALL - REPAIR_INTERVAL),)), FREE, True),
        (report_after_repair(history=(replace(SKIP, started=WALL - REPAIR_INTERVAL),)), FREE, True),
        (
            report_after_repair(history=(replace(SKIP, started=WALL + 86400.0),)),
            FREE,
            True,
        ),  # the clock was set back afterwards
        (report_after_repair(), IDLE, True),
        (report_after_repair(), SOON, False),
        (report_after_repair(), replace(FREE, schedulers=("slurmd",)), False),
        (report_after_repair(), replace(FREE, schedulers=("slurmd",), gated=True), True),
        (report_after_repair(), replace(FREE, held="held by command"), False),
        (report_after_repair(), replace(FREE, schedulers=None), False),
        (report_after_repair(), PARTIAL, True),
        (report_after_repair(begun=None, uuid="GPU-2"), PARTIAL, False),
    ],
)
def test_a_repair_makes_a_run_due_early(
    report: Report,
    now: PreflightFacts,
    early: bool,  # noqa: FBT001 - a column of the table
) -> None:
    """A run is due once after the reset or replacement of a GPU that is free, and again 30 minutes after a skip."""
    assert is_due_early("allreduce", report, now, wall=WALL, at=AT) is early
