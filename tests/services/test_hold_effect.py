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
from loops import turn_for, turn_until
from stores import read
from unkillable import build, held

from gpumon.clock import boot_clock
from gpumon.model.gpu import Gpu
from gpumon.model.gpu_state import GpuState
from gpumon.model.node import Node
from gpumon.model.request_result import RequestResult
from gpumon.model.time_window import WindowKind, WindowRequest, WindowSelection, in_force
from gpumon.probe.core.preflight import IDLE_BYTES
from gpumon.probe.core.probes import PROBES
from gpumon.probe.core.schedule import Timetable
from gpumon.probe.core.settings import ProbeSettings
from gpumon.probe.runner import gpu_visibility, ranks
from gpumon.probe.runner.probe_host import ProbeHost
from gpumon.probe.runner.run_record import RunRecord
from gpumon.probe.runner.runs import ProbeRuns
from gpumon.probe.runner.scheduler import ProbeScheduler
from gpumon.services import time_windows, window_effects
from gpumon.services.persistence import Persistence
from gpumon.services.time_windows import TimeWindows
from gpumon.services.window_effects import HoldEffect
from gpumon.state.messages import ProbeEnded, ProbeProgressed, Tick
from gpumon.state.monitor import Monitor
from gpumon.state.reducer_settings import ReducerSettings
from gpumon.state.report import Report
from gpumon.store import windows
from gpumon.store.retention import Retention
from gpumon.store.store import Store
from gpumon.store.store_error import StoreError
from gpumon.supervisor.loop import Loop

RACES = 200
MAX_RANKS = 4096
HANG = """
import json, os, sys, time
orders = json.loads(sys.stdin.readline())
os.write(orders["result"], b'{"stage": "join"}\\n')
time.sleep(60)
"""

FIRST = Report(started=0.0, boot_id="a", simulated="h100x8", node=Node(snapshot_timestamp_seconds=1.0))


class Held:
    """As much of an agent as it takes."""

    def __init__(self, store: Path, worker: Path, python: str = sys.executable) -> None:
        self.loop = Loop()
        self.monitor = Monitor(FIRST, ReducerSettings())
        self.persistence = Persistence(
            self.loop,
            store,
            Retention(),
            "allreduce",
            publish=self.monitor.take,
            latest=lambda: self.monitor.latest,
        )
        self.seen: Callable[[Report], Report] = lambda report: report
        """What else a test lets the Report say."""
        self.messages: list[Any] = []
        self.watched: list[bool] = []
        self.probing = ProbeRuns(
            self.loop,
            replace(PROBES["allreduce"], worker=worker),
            ProbeHost(
                self.loop,
                ProbeSettings(python=python, deadline=30.0),
                self.latest,
                lambda *, closely: self.watched.append(closely),
            ),
            publish=self._tell,
            store=lambda result: self._tell(ProbeEnded(result=result)),
            record=RunRecord(worker.with_name("run.json")),
        )
        self.scheduler = ProbeScheduler(self.loop, self.probing, Timetable(interval=3600, jitter=0, first_after=3600))
        self.windows = TimeWindows(
            self.loop,
            self.persistence.writes,
            {WindowKind.HOLD: HoldEffect(self.probing)},
            max_seconds={WindowKind.HOLD: 3600.0},
            latest=self.latest,
            publish=self.monitor.take,
        )
        self.persistence.start()
        turn_until(self.loop, lambda: self.monitor.latest.internal.restored)

    def latest(self) -> Report:
        return self.seen(self.monitor.latest)

    def _tell(self, arrival: Any) -> None:
        self.messages.append(arrival)
        self.monitor.take(arrival)

    def answered(self, asked: Future[Any]) -> Any:
        turn_until(self.loop, asked.done)
        return asked.result()

    def request(self, owner: str = "", seconds: float = 60.0, reason: str = "prolog") -> Future[RequestResult]:
        request = WindowRequest(kind=WindowKind.HOLD, seconds=seconds, by="command", owner=owner, reason=reason)
        return self.windows.start(request)

    def hold(self, owner: str = "", seconds: float = 60.0) -> RequestResult:
        answer: RequestResult = self.answered(self.request(owner, seconds))
        return answer

    def unhold(self, owner: str = "") -> RequestResult:
        selection = WindowSelection(kind=WindowKind.HOLD, owner=owner, by="command")
        answer: RequestResult = self.answered(self.windows.end(selection))
        return answer

    def run(self) -> None:
        """Start one, and wait until its ranks are at work."""
        before = len(self.messages)
        assert self.answered(self.probing.request()).accepted
        turn_until(self.loop, lambda: any(isinstance(message, ProbeProgressed) for message in self.messages[before:]))

    def owners(self) -> list[str]:
        return [one.owner for one in in_force(self.monitor.latest.windows)]

    def stop(self) -> None:
        self.probing.stop()
        turn_until(self.loop, lambda: not self.probing.running)
        self.persistence.close()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir()
    return tmp_path / "state" / "gpumon.db"


@pytest.fixture
def agent(store: Path, tmp_path: Path) -> Iterator[Held]:
    worker = tmp_path / "worker.py"
    worker.write_text(HANG)
    one = Held(store, worker)
    yield one
    one.stop()


def test_a_hold_ends_the_run_and_is_answered_when_its_ranks_are_gone(agent: Held) -> None:
    """The result is a skip that names the owner; no other run begins before the hold has ended."""
    agent.run()
    pids = agent.probing.host.holders()
    assert agent.hold("4711") == RequestResult()
    assert len(pids) == 2
    assert not any(Path(f"/proc/{pid.pid}").exists() for pid in pids)
    result = agent.messages[-1].result
    assert (result.outcome, result.reason) == ("skipped", "held")
    assert "4711 (by command)" in result.hint

    refused = agent.answered(agent.probing.request())
    assert (refused.accepted, refused.reason) == (False, "held")
    assert "gpumon probe unhold --owner 4711" in refused.hint
    assert agent.unhold("4711") == RequestResult()
    agent.run()


def test_each_owner_has_a_hold(agent: Held) -> None:
    """Two jobs and a person: no run begins before the last of them has ended theirs."""
    for owner in ("1", "2", "", "2"):
        assert not agent.hold(owner).refused
    assert agent.owners() == ["1", "", "2"]
    for owner in ("1", "", "3", "2"):
        assert agent.answered(agent.probing.request()).reason == "held"
        assert not agent.unhold(owner).refused
    assert agent.owners() == []
    agent.run()


def test_the_next_agent_knows_it(agent: Held, store: Path, tmp_path: Path) -> None:
    """It is on record when the answer comes: kill -9 right after it changes nothing."""
    for owner in ("1", "2"):
        assert agent.hold(owner).stored
    assert agent.unhold("1").stored
    agent.persistence.close()
    again = Held(store, tmp_path / "worker.py")
    assert again.owners() == ["2"]
    assert again.answered(again.probing.request()).reason == "held"
    again.stop()


def test_what_the_store_knows_is_waited_for(agent: Held) -> None:
    """Until the store has been read, a stored hold may be in force, so no run begins."""
    agent.seen = lambda report: replace(report, internal=replace(report.internal, restored=False))
    refused = agent.answered(agent.probing.request())
    assert (refused.reason, "store" in refused.hint) == ("held", True)


def test_what_time_ends_is_over_and_stored_as_ended(agent: Held, store: Path) -> None:
    """It ends at its deadline without a request."""
    agent.hold("1", 0.05)
    agent.hold("2")

    def over() -> bool:
        agent.monitor.take(Tick())
        agent.persistence.tick()
        return agent.owners() == ["2"]

    turn_until(agent.loop, over)
    agent.persistence.close()
    with Store.open(store) as opened:
        assert [one.owner for one in in_force(read(opened, windows.read))] == ["2"]


@pytest.mark.parametrize(
    ("seconds", "reason", "owner"), [(0.0, "", ""), (3601.0, "", ""), (60.0, "a\tb", ""), (60.0, "", "x" * 101)]
)
def test_a_wrong_request_changes_nothing(agent: Held, seconds: float, reason: str, owner: str) -> None:
    """The refusal of a hold that is too long, or has an unprintable owner, names the reason."""
    answer = agent.answered(agent.request(owner, seconds, reason))
    assert answer.refused
    assert answer.remedy
    assert agent.owners() == []


def test_a_store_that_fails_keeps_nobody_waiting(agent: Held, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in force, and the answer reports that it is not stored."""

    def full(*_: object) -> None:
        raise StoreError(store, "the disk is full", "make room")

    monkeypatch.setattr("gpumon.store.windows.put", full)
    assert agent.hold("1") == RequestResult(stored=False)
    assert agent.owners() == ["1"]


def test_a_rank_that_cannot_be_killed_is_named(agent: Held, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hold is in force, and the answer reports in time that the GPUs are not free."""
    monkeypatch.setattr(ranks, "KILL_PATIENCE", 0.2)
    agent.run()
    pid = agent.probing.host.holders()[0].pid
    with held(build(tmp_path), pid):
        answer = agent.hold("1")
        assert [(holder.pid, holder.stuck) for holder in answer.holders] == [(pid, True)]
        assert agent.owners() == ["1"]
    turn_until(agent.loop, lambda: not agent.probing.host.holders())
    assert agent.hold("1") == RequestResult()


def test_a_rank_that_takes_long_to_end_is_named_and_not_called_unkillable(
    agent: Held, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To give back what it had on a GPU takes the kernel many seconds; the run is a skip when it has."""
    monkeypatch.setattr(HoldEffect, "answer_seconds", 0.2)
    agent.run()
    pid = agent.probing.host.holders()[0].pid
    with held(build(tmp_path), pid):
        answer = agent.hold("1")
        assert [(holder.pid, holder.stuck) for holder in answer.holders] == [(pid, False)]
    turn_until(agent.loop, lambda: not agent.probing.running)
    assert (agent.messages[-1].result.outcome, agent.messages[-1].result.reason) == ("skipped", "held")


def real(report: Report, *, asked: float, rank: tuple[int, ...] | None = (), used: float | None = 0.0) -> Report:
    """The same of two real GPUs, of which the second shows this; read at this moment of the boot clock."""
    idle = Gpu(processes=0.0, memory_used_bytes=0.0)
    first = GpuState(bus_id="0", uuid="GPU-0", index=0, gpu=idle, pids=(), pids_at=asked)
    second = replace(
        first, bus_id="1", uuid="GPU-1", index=1, gpu=replace(first.gpu, memory_used_bytes=used), pids=rank
    )
    return replace(report, simulated=None, gpus=(first, second), node=replace(report.node, gpus_expected=2.0))


@pytest.mark.parametrize(("asked", "pids"), [(1.0, ()), (4e9, None)])
def test_what_nobody_has_looked_at_is_not_called_free(
    agent: Held, monkeypatch: pytest.MonkeyPatch, asked: float, pids: tuple[int, ...] | None
) -> None:
    """No poll has begun since the ranks ended, or it could not read the processes of one of their GPUs."""
    monkeypatch.setattr(HoldEffect, "answer_seconds", 0.5)
    agent.seen = lambda report: real(report, asked=1.0)
    agent.run()
    waits = agent.request("1")
    turn_until(agent.loop, lambda: not agent.probing.host.holders())
    agent.seen = lambda report: real(report, asked=asked, rank=pids)
    answer = agent.answered(waits)
    assert (answer.holders, answer.not_readable) == ((), window_effects.UNREAD)


@pytest.mark.parametrize("step", [-86400.0, 86400.0])
def test_a_step_of_the_wall_clock_neither_frees_the_gpus_nor_keeps_them(
    agent: Held, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    """A reading from before the end of the ranks is ignored; the first one after it is sufficient."""
    monkeypatch.setattr(HoldEffect, "answer_seconds", 60.0)
    agent.seen = lambda report: real(report, asked=1.0)
    agent.run()
    waits = agent.request("1")
    turn_until(agent.loop, lambda: not agent.probing.host.holders())
    true = time.time
    monkeypatch.setattr(time, "time", lambda: true() + step)
    before = boot_clock() - 60.0
    stepped = replace(FIRST.node, snapshot_timestamp_seconds=time.time())
    agent.seen = lambda report: replace(real(report, asked=before), node=stepped)
    turn_for(agent.loop, 5 * time_windows.POLL_SECONDS)
    assert not waits.done()
    after = boot_clock()
    agent.seen = lambda report: replace(real(report, asked=after), node=stepped)
    assert agent.answered(waits) == RequestResult()


def test_ranks_that_had_ended_before_the_hold_are_looked_for_too(agent: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is in progress until NVML shows none of them."""
    monkeypatch.setattr(HoldEffect, "answer_seconds", 1.0)
    agent.seen = lambda report: real(report, asked=1.0)
    agent.run()
    first, second = (holder.pid for holder in agent.probing.host.holders())
    for pid in (first, second):
        os.kill(pid, signal.SIGKILL)
    turn_until(agent.loop, lambda: not agent.probing.host.holders())
    assert agent.probing.running
    agent.seen = lambda report: real(report, asked=4e9, rank=(second,))
    assert [holder.pid for holder in agent.hold("1").holders] == [second]


def test_a_run_that_nobody_has_seen_leave_is_looked_for_by_the_next_hold(
    agent: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its patience the GPUs are read closely again, and a request is answered once they are clear."""
    monkeypatch.setattr(gpu_visibility, "DEPARTURE_PATIENCE", 0.1)
    monkeypatch.setattr(HoldEffect, "answer_seconds", 0.5)
    agent.seen = lambda report: real(report, asked=1.0)
    agent.run()
    pids = [holder.pid for holder in agent.probing.host.holders()]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    turn_until(agent.loop, lambda: not agent.probing.running)
    agent.watched.clear()
    assert agent.hold("1").not_readable == window_effects.UNREAD
    assert agent.watched == [True]
    agent.seen = lambda report: real(report, asked=4e9, rank=(pids[1],))
    assert [holder.pid for holder in agent.hold("1").holders] == [pids[1]]
    agent.seen = lambda report: real(report, asked=4e9)
    assert agent.hold("1") == RequestResult()
    agent.seen = lambda report: real(report, asked=1.0, used=4e9)
    assert agent.hold("1") == RequestResult()


@pytest.mark.parametrize(
    ("left", "reported"),
    [
        ({}, []),
        ({"used": None}, []),
        ({"used": IDLE_BYTES + 1.0}, ["GPU 1, which has 1.0 GiB in use"]),
        ({"used": IDLE_BYTES + 1.0, "listed": "stranger"}, []),
        ({"listed": "rank"}, ["rank {pid} of the probe, which NVML still lists on GPU 1"]),
    ],
)
def test_what_a_run_leaves_on_real_gpus_is_told(
    agent: Held, monkeypatch: pytest.MonkeyPatch, left: dict[str, Any], reported: list[str]
) -> None:
    """A poll after the end of its ranks has to say that nothing is left, as far as it can; a stranger is no rest."""
    if not reported:  # so that the test does not wait so long
        monkeypatch.setattr(HoldEffect, "answer_seconds", 60.0)
    agent.seen = lambda report: real(report, asked=1.0)
    agent.run()
    rank = agent.probing.host.holders()[0].pid
    asked = agent.request("1")
    turn_until(agent.loop, lambda: not agent.probing.host.holders())
    assert reported or not asked.done(), "no poll has reported it yet"
    pids = {"rank": (rank,), "stranger": (1,)}.get(left.get("listed", ""), ())
    agent.seen = lambda report: real(report, asked=4e9, rank=pids, used=left.get("used", 0.0))
    assert [holder.description for holder in agent.answered(asked).holders] == [words.format(pid=rank) for words in reported]


# The race


@pytest.fixture(scope="module")
def stamping(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A rank that starts within a millisecond, and records when it was last alive."""
    compiler = shutil.which("gcc")
    assert compiler is not None, "install gcc"
    program = tmp_path_factory.mktemp("rank") / "stamping_rank"
    subprocess.run([compiler, "-O1", "-o", program, Path(__file__).with_name("stamping_rank.c")], check=True)
    return program


class Stamps:
    """What the ranks themselves have written down."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(8 + 16 * MAX_RANKS))

    def begun(self) -> int:
        """How many ranks there ever were."""
        (count,) = struct.unpack_from("q", self.path.read_bytes())
        return int(count)

    def agent_runs(self) -> list[tuple[float, float]]:
        """When each began and was last alive, on CLOCK_BOOTTIME."""
        lines = struct.iter_unpack("qq", self.path.read_bytes()[8:])
        return [(began / 1e9, last / 1e9) for began, last in itertools.islice(lines, self.begun())]


@pytest.mark.slow
def test_no_rank_lives_between_the_answer_to_a_hold_and_its_end(store: Path, tmp_path: Path, stamping: Path) -> None:
    """However a hold and the start of a run race, and whatever had begun: by what the ranks themselves say."""
    stamps, chance = Stamps(tmp_path / "stamps"), random.Random(5)  # noqa: S311 - no secret
    agent = Held(store, stamps.path, python=str(stamping))
    whiles = [race(agent, stamps, number, chance) for number in range(RACES)]
    agent.stop()
    agent_runs = stamps.agent_runs()
    assert RACES / 4 <= len(agent_runs) < MAX_RANKS
    for began, last in agent_runs:
        assert began <= last
        for number, (answered, ended) in enumerate(whiles):
            assert last < answered or ended < began, f"race {number}: alive {last - answered:.6f} s after the answer"


def race(agent: Held, stamps: Stamps, number: int, chance: random.Random) -> tuple[float, float]:
    """A run is asked for, or due, and a hold is; when it was answered, and when it was ended.

    For some of the runs the scheduler is asked first, so that they have been asked for, and no rank has begun.
    """
    agent.probing.host.settings = replace(agent.probing.host.settings, gate=("/bin/true",) if number % 3 else ())
    start: Callable[[], object] = agent.scheduler.run_due if number % 2 else agent.probing.request
    if number % 4 >= 2:  # ranks are at work already
        before = stamps.begun()
        start()
        turn_until(agent.loop, lambda: stamps.begun() == before + 2)
    asked: Future[RequestResult] = Future()
    answered: list[float] = []

    def hold() -> None:
        answer = agent.request(str(number))
        answer.add_done_callback(lambda _: answered.append(boot_clock()))
        answer.add_done_callback(lambda one: asked.set_result(one.result()))

    racers = [at_random(chance.uniform(0, 0.003), start), at_random(chance.uniform(0, 0.006), hold)]
    assert agent.answered(asked) == RequestResult()
    for racer in racers:
        racer.join()
    start()  # one that is asked for meanwhile
    agent.loop.turn()
    ended = boot_clock()
    assert agent.unhold(str(number)) == RequestResult()
    return answered[0], ended


def at_random(delay: float, ask: Callable[[], object]) -> threading.Thread:
    """Ask from another thread, as the server does."""

    def wait() -> None:
        until = boot_clock() + delay
        while boot_clock() < until:
            pass
        ask()

    racer = threading.Thread(target=wait)
    racer.start()
    return racer
