"""Holds with a real store and rank processes that are killed."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from changed_report import changed, new_report
from loops import turn_for, turn_until
from stores import StoringAgent
from unkillable import build, held

from gpumon.clock import boot_clock
from gpumon.model.gpu import Gpu
from gpumon.model.gpu_state import GpuState
from gpumon.model.node import Node
from gpumon.model.request import RequestResult
from gpumon.model.time_window import WindowKind, WindowRequest, WindowSelection, in_force
from gpumon.probe.core.frames import Progress
from gpumon.probe.core.preflight import IDLE_BYTES
from gpumon.probe.core.probes import PROBES
from gpumon.probe.core.settings import ProbeSettings, Timetable
from gpumon.runner import gpu_visibility, ranks
from gpumon.runner.probe_host import ProbeHost
from gpumon.runner.runs import ProbeRuns, RunRecord
from gpumon.runner.scheduler import ProbeScheduler
from gpumon.services import time_windows
from gpumon.services.time_windows import HoldEffect, TimeWindows
from gpumon.state.report import Report

RACES = 200
MAX_RANKS = 4096
HANG = """
import json, os, sys, time
orders = json.loads(sys.stdin.readline())
os.write(orders["result"], b'{"stage": "join"}\\n')
time.sleep(60)
"""

FIRST = new_report(boot_id="a", simulated="h100x8", node=Node(snapshot_timestamp_seconds=1.0))


class HoldingAgent(StoringAgent):
    """An agent with persistence, probe runs and holds."""

    def __init__(self, store: Path, worker: Path, python: str = sys.executable) -> None:
        super().__init__(store, FIRST)
        self.transform: Callable[[Report], Report] = lambda report: report
        """Function with which a test changes the Report."""
        self.messages: list[Any] = []
        self.watch_calls: list[bool] = []
        self.probing = ProbeRuns(
            self.loop,
            {"allreduce": replace(PROBES["allreduce"], worker=worker)},
            ProbeHost(
                self.loop,
                ProbeSettings(python=python, deadline=30.0),
                self.latest,
                lambda *, closely: self.watch_calls.append(closely),
            ),
            publish=self._record,
            store=self._record,
            record=RunRecord(worker.with_name("run.json")),
        )
        self.scheduler = ProbeScheduler(self.loop, self.probing, {"allreduce": Timetable(interval=3600)})
        self.windows = TimeWindows(
            self.loop,
            self.persistence.writes,
            {WindowKind.HOLD: HoldEffect(self.probing)},
            max_seconds={WindowKind.HOLD: 3600.0},
            latest=self.latest,
            publish=self.monitor.take,
        )
        self.persistence.start()
        turn_until(self.loop, lambda: self.monitor.latest.agent.restored)

    def latest(self) -> Report:
        return self.transform(self.monitor.latest)

    def _record(self, arrival: Any) -> None:
        self.messages.append(arrival)
        self.monitor.take(arrival)

    def result_of(self, future: Future[Any]) -> Any:
        turn_until(self.loop, future.done)
        return future.result()

    def request(self, owner: str = "", seconds: float = 60.0, reason: str = "prolog") -> Future[RequestResult]:
        request = WindowRequest(kind=WindowKind.HOLD, seconds=seconds, by="command", owner=owner, reason=reason)
        return self.windows.start(request)

    def hold(self, owner: str = "", seconds: float = 60.0) -> RequestResult:
        answer: RequestResult = self.result_of(self.request(owner, seconds))
        return answer

    def unhold(self, owner: str = "") -> RequestResult:
        selection = WindowSelection(kind=WindowKind.HOLD, owner=owner, by="command")
        answer: RequestResult = self.result_of(self.windows.end(selection))
        return answer

    def run(self) -> None:
        """Start a run, and wait until its ranks report progress."""
        before = len(self.messages)
        assert self.result_of(self.probing.request()).accepted
        turn_until(self.loop, lambda: any(isinstance(message, Progress) for message in self.messages[before:]))

    def owners(self) -> list[str]:
        return [window.owner for window in in_force(self.monitor.latest.windows)]

    def stop(self) -> None:
        self.probing.stop()
        turn_until(self.loop, lambda: not self.probing.running)
        self.persistence.close()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir()
    return tmp_path / "state" / "gpumon.db"


@pytest.fixture
def agent(store: Path, tmp_path: Path) -> Iterator[HoldingAgent]:
    worker = tmp_path / "worker.py"
    worker.write_text(HANG)
    created = HoldingAgent(store, worker)
    yield created
    created.stop()


def test_a_hold_ends_the_run_before_its_answer(agent: HoldingAgent) -> None:
    """A hold kills the ranks before its answer, and the skip names its owner; no run starts until it ends."""
    agent.run()
    pids = agent.probing.host.holders()
    assert agent.hold("4711") == RequestResult()
    assert len(pids) == 2
    assert not any(Path(f"/proc/{pid.pid}").exists() for pid in pids)
    result = agent.messages[-1]
    assert (result.outcome, result.reason) == ("skipped", "held")
    assert "4711 (by command)" in result.hint

    refused = agent.result_of(agent.probing.request())
    assert (refused.accepted, refused.reason) == (False, "held")
    assert "gpumon probe unhold --owner 4711" in refused.hint
    assert agent.unhold("4711") == RequestResult()
    agent.run()


def test_no_run_starts_before_the_store_is_read(agent: HoldingAgent) -> None:
    """No run starts until the store has been read, because a stored hold may be in force."""
    agent.transform = lambda report: replace(report, agent=replace(report.agent, restored=False))
    refused = agent.result_of(agent.probing.request())
    assert (refused.reason, "store" in refused.hint) == ("held", True)


def test_a_rank_that_cannot_be_killed_is_named(
    agent: HoldingAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "KILL_PATIENCE", 0.2)
    agent.run()
    pid = agent.probing.host.holders()[0].pid
    with held(build(tmp_path), pid):
        answer = agent.hold("1")
        assert [(holder.pid, holder.stuck) for holder in answer.holders] == [(pid, True)]
        assert agent.owners() == ["1"]
    turn_until(agent.loop, lambda: not agent.probing.host.holders())
    assert agent.hold("1") == RequestResult()


def test_a_rank_that_ends_slowly_is_named_as_not_stuck(
    agent: HoldingAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HoldEffect, "answer_seconds", 0.2)
    agent.run()
    pid = agent.probing.host.holders()[0].pid
    with held(build(tmp_path), pid):
        answer = agent.hold("1")
        assert [(holder.pid, holder.stuck) for holder in answer.holders] == [(pid, False)]
    turn_until(agent.loop, lambda: not agent.probing.running)
    assert (agent.messages[-1].outcome, agent.messages[-1].reason) == ("skipped", "held")


def on_real_gpus(
    report: Report, *, read_at: float, rank: tuple[int, ...] | None = (), used: float | None = 0.0
) -> Report:
    """Return the Report with two real GPUs, of which the second has these values, read at `read_at`."""
    idle = Gpu(processes=0.0, memory_used_bytes=0.0)
    first = GpuState(bus_id="0", uuid="GPU-0", index=0, gpu=idle, pids=(), pids_at=read_at)
    second = replace(
        first, bus_id="1", uuid="GPU-1", index=1, gpu=replace(first.gpu, memory_used_bytes=used), pids=rank
    )
    return changed(report, simulated=None, gpus=(first, second), node=replace(report.node, gpus_expected=2.0))


@pytest.mark.parametrize(("read_at", "pids"), [(1.0, ()), (4e9, None)])
def test_gpus_that_were_not_read_are_not_reported_as_free(
    agent: HoldingAgent, monkeypatch: pytest.MonkeyPatch, read_at: float, pids: tuple[int, ...] | None
) -> None:
    """The answer reports GPUs as unread if no poll has read their processes since the ranks ended."""
    monkeypatch.setattr(HoldEffect, "answer_seconds", 0.5)
    agent.transform = lambda report: on_real_gpus(report, read_at=1.0)
    agent.run()
    waits = agent.request("1")
    turn_until(agent.loop, lambda: not agent.probing.host.holders())
    agent.transform = lambda report: on_real_gpus(report, read_at=read_at, rank=pids)
    answer = agent.result_of(waits)
    assert (answer.holders, answer.not_readable) == ((), time_windows.UNREAD)


@pytest.mark.parametrize("step", [-86400.0, 86400.0])
def test_a_step_of_the_wall_clock_does_not_affect_the_answer(
    agent: HoldingAgent, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    """The answer waits for a reading after the end of the ranks by the boot clock."""
    monkeypatch.setattr(HoldEffect, "answer_seconds", 60.0)
    agent.transform = lambda report: on_real_gpus(report, read_at=1.0)
    agent.run()
    waits = agent.request("1")
    turn_until(agent.loop, lambda: not agent.probing.host.holders())
    wall_clock = time.time
    monkeypatch.setattr(time, "time", lambda: wall_clock() + step)
    before = boot_clock() - 60.0
    stepped = replace(FIRST.node, snapshot_timestamp_seconds=time.time())
    agent.transform = lambda report: changed(on_real_gpus(report, read_at=before), node=stepped)
    turn_for(agent.loop, 5 * time_windows.POLL_SECONDS)
    assert not waits.done()
    after = boot_clock()
    agent.transform = lambda report: changed(on_real_gpus(report, read_at=after), node=stepped)
    assert agent.result_of(waits) == RequestResult()


def test_ranks_that_ended_before_the_hold_are_checked_too(agent: HoldingAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that has ended is reported as a holder while NVML still lists it."""
    monkeypatch.setattr(HoldEffect, "answer_seconds", 1.0)
    agent.transform = lambda report: on_real_gpus(report, read_at=1.0)
    agent.run()
    first, second = (holder.pid for holder in agent.probing.host.holders())
    for pid in (first, second):
        os.kill(pid, signal.SIGKILL)
    turn_until(agent.loop, lambda: not agent.probing.host.holders())
    assert agent.probing.running
    agent.transform = lambda report: on_real_gpus(report, read_at=4e9, rank=(second,))
    assert [holder.pid for holder in agent.hold("1").holders] == [second]


def test_the_next_hold_checks_an_unconfirmed_end_of_a_run(agent: HoldingAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hold polls the GPUs closely again if the end of the last run was not confirmed."""
    monkeypatch.setattr(gpu_visibility, "DEPARTURE_PATIENCE", 0.1)
    monkeypatch.setattr(HoldEffect, "answer_seconds", 0.5)
    agent.transform = lambda report: on_real_gpus(report, read_at=1.0)
    agent.run()
    pids = [holder.pid for holder in agent.probing.host.holders()]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    turn_until(agent.loop, lambda: not agent.probing.running)
    agent.watch_calls.clear()
    assert agent.hold("1").not_readable == time_windows.UNREAD
    assert agent.watch_calls == [True]
    agent.transform = lambda report: on_real_gpus(report, read_at=4e9, rank=(pids[1],))
    assert [holder.pid for holder in agent.hold("1").holders] == [pids[1]]
    agent.transform = lambda report: on_real_gpus(report, read_at=4e9)
    assert agent.hold("1") == RequestResult()
    agent.transform = lambda report: on_real_gpus(report, read_at=1.0, used=4e9)
    assert agent.hold("1") == RequestResult()


@pytest.mark.parametrize(
    ("remains", "reported"),
    [
        ({}, []),
        ({"used": None}, []),
        ({"used": IDLE_BYTES + 1.0}, ["GPU 1, which has 1.0 GiB in use"]),
        ({"used": IDLE_BYTES + 1.0, "listed": "foreign"}, []),
        ({"listed": "rank"}, ["rank {pid} of the probe, which NVML still lists on GPU 1"]),
    ],
)
def test_remains_of_a_run_on_real_gpus_are_reported(
    agent: HoldingAgent, monkeypatch: pytest.MonkeyPatch, remains: dict[str, Any], reported: list[str]
) -> None:
    """The answer waits for a poll after the end of the ranks, and names their remains but no foreign process."""
    if not reported:  # the answer must not come by timeout
        monkeypatch.setattr(HoldEffect, "answer_seconds", 60.0)
    agent.transform = lambda report: on_real_gpus(report, read_at=1.0)
    agent.run()
    rank = agent.probing.host.holders()[0].pid
    hold_answer = agent.request("1")
    turn_until(agent.loop, lambda: not agent.probing.host.holders())
    assert reported or not hold_answer.done(), "no poll has reported it yet"
    pids = {"rank": (rank,), "foreign": (1,)}.get(remains.get("listed", ""), ())
    agent.transform = lambda report: on_real_gpus(report, read_at=4e9, rank=pids, used=remains.get("used", 0.0))
    assert [holder.description for holder in agent.result_of(hold_answer).holders] == [
        words.format(pid=rank) for words in reported
    ]


# Race between a hold and a run


@pytest.fixture(scope="module")
def stamping_rank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a rank program that starts within a millisecond and records when it was last alive."""
    compiler = shutil.which("gcc")
    assert compiler is not None, "install gcc"
    program = tmp_path_factory.mktemp("rank") / "stamping_rank"
    subprocess.run([compiler, "-O1", "-o", program, Path(__file__).with_name("stamping_rank.c")], check=True)
    return program


class Stamps:
    """The file in which ranks record their start and the last time that they were alive."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(8 + 16 * MAX_RANKS))

    def rank_count(self) -> int:
        """Return the number of ranks that have started."""
        (count,) = struct.unpack_from("q", self.path.read_bytes())
        return int(count)

    def lifetimes(self) -> list[tuple[float, float]]:
        """Return the start and the last time alive of each rank, on CLOCK_BOOTTIME."""
        lines = struct.iter_unpack("qq", self.path.read_bytes()[8:])
        return [(began / 1e9, last / 1e9) for began, last in itertools.islice(lines, self.rank_count())]


@pytest.mark.slow
def test_no_rank_is_alive_between_the_answer_and_the_end_of_a_hold(
    store: Path, tmp_path: Path, stamping_rank: Path
) -> None:
    """No rank is alive during a hold, by the ranks' own records of many races."""
    stamps, chance = Stamps(tmp_path / "stamps"), random.Random(5)  # noqa: S311 - no secret
    agent = HoldingAgent(store, stamps.path, python=str(stamping_rank))
    hold_periods = [race_hold_and_run(agent, stamps, number, chance) for number in range(RACES)]
    agent.stop()
    lifetimes = stamps.lifetimes()
    assert RACES / 4 <= len(lifetimes) < MAX_RANKS
    for began, last in lifetimes:
        assert began <= last
        for number, (answered, ended) in enumerate(hold_periods):
            assert last < answered or ended < began, f"race {number}: alive {last - answered:.6f} s after the answer"


def race_hold_and_run(agent: HoldingAgent, stamps: Stamps, number: int, chance: random.Random) -> tuple[float, float]:
    """Start a run and a hold at random times, and return the times of the hold's answer and end.

    Some runs have a scheduler gate, so that they are accepted before any rank starts.
    """
    agent.probing.host.settings = replace(agent.probing.host.settings, gate=("/bin/true",) if number % 3 else ())
    request: Callable[[str], object] = agent.scheduler.run_due if number % 2 else agent.probing.request

    def start() -> None:
        request("allreduce")

    if number % 4 >= 2:  # ranks run already
        before = stamps.rank_count()
        start()
        turn_until(agent.loop, lambda: stamps.rank_count() == before + 2)
    hold_answer: Future[RequestResult] = Future()
    answered: list[float] = []

    def hold() -> None:
        answer = agent.request(str(number))
        answer.add_done_callback(lambda _: answered.append(boot_clock()))
        answer.add_done_callback(lambda future: hold_answer.set_result(future.result()))

    threads = [
        request_after_delay(chance.uniform(0, 0.003), start),
        request_after_delay(chance.uniform(0, 0.006), hold),
    ]
    assert agent.result_of(hold_answer) == RequestResult()
    for thread in threads:
        thread.join()
    start()  # a request during the hold
    agent.loop.turn()
    ended = boot_clock()
    assert agent.unhold(str(number)) == RequestResult()
    return answered[0], ended


def request_after_delay(delay: float, ask: Callable[[], object]) -> threading.Thread:
    """Make the request from another thread, as the server does, and return the thread."""

    def wait() -> None:
        until = boot_clock() + delay
        while boot_clock() < until:
            pass
        ask()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread
