"""Probing as the agent does it: Reports in, real rank processes, results and arrivals out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest
from agents import unreaped
from loops import turn_for, turn_until

from gpumon.clock import boot_clock
from gpumon.model.fabric import Fabric
from gpumon.model.gpu import Gpu
from gpumon.model.gpu_state import GpuState
from gpumon.model.node import Node
from gpumon.model.snapshot import LinksSnapshot
from gpumon.probe.core import preflight
from gpumon.probe.core.probes import PROBES
from gpumon.probe.core.result import Conditions, ProbeRequest, ProbeResult
from gpumon.probe.core.schedule import Timetable
from gpumon.probe.core.settings import ProbeSettings
from gpumon.probe.core.state import ProbeState
from gpumon.probe.runner import gpu_visibility, scheduler
from gpumon.probe.runner.probe_host import ProbeHost
from gpumon.probe.runner.run_record import RunRecord
from gpumon.probe.runner.runs import WATCH_SECONDS, ProbeRuns
from gpumon.probe.runner.scheduler import ProbeScheduler
from gpumon.state.gpu_inventory import GpuInventory
from gpumon.state.gpu_record import GpuRecord
from gpumon.state.links_status import LinksState
from gpumon.state.messages import ProbeProgressed, ProbeStarted
from gpumon.state.report import InternalState, Report
from gpumon.supervisor.loop import Loop

HANG = """
import json, os, sys, time
orders = json.loads(sys.stdin.readline())
os.write(orders["result"], b'{"stage": "join"}\\n')
time.sleep(60)
"""
MEASURE = """
import json, os, sys
orders = json.loads(sys.stdin.readline())
def say(**frame):
    os.write(orders["result"], json.dumps(frame).encode() + b"\\n")
say(stage="join")
for line in sys.stdin:
    step = json.loads(line)
    if step["do"] == "end":
        say(done=True)
        break
    for size in step["sizes"]:
        say(step=step["number"], bytes=size, seconds=[1e-3] * 5, wrong=0)
    say(stepped=step["number"] + 1)
"""
"""Ranks that say that all is well, and end."""
PROBE = PROBES["allreduce"]


def node(*processes: float, simulated: bool = True, **gpu: float) -> Report:
    """A Report of GPUs that so many processes hold."""
    states = tuple(
        GpuState(bus_id=str(n), uuid=f"GPU-{n}", index=n, gpu=Gpu(processes=count, **gpu))  # type: ignore[arg-type]
        for n, count in enumerate(processes)
    )
    expected = Node(gpus_expected=float(len(states)))
    known = InternalState(restored=True)
    return Report(started=0.0, simulated="h100x8" if simulated else None, gpus=states, node=expected, internal=known)


def on_host(report: Report, pids: Sequence[int] = (), *, contained: bool = False) -> Report:
    """One that sees the processes of the whole host, and is never old; each pid is on a GPU of its own."""
    links = LinksState(snapshot=LinksSnapshot(ended_at=0.0, contained=contained))
    held = [pids[n : n + 1] for n in range(len(report.gpus))]
    gpus = tuple(replace(state, pids=tuple(one)) for state, one in zip(report.gpus, held, strict=True))
    polled = replace(report.node, snapshot_timestamp_seconds=1.0)
    return asked(replace(report, gpus=gpus, node=polled, internal=replace(report.internal, links=links)), 4e9)


def asked(report: Report, at: float) -> Report:
    """The same of a node whose processes were read at this moment of the boot clock."""
    return replace(report, gpus=tuple(replace(state, pids_at=at) for state in report.gpus))


class Bench:
    """A loop with its probe, whose ranks hang; a test changes the Report that they see."""

    def __init__(self, worker: Path) -> None:
        self.worker = worker
        worker.write_text(HANG)
        self.loop = Loop()
        self.report = node(0.0, 0.0)
        self.told: list[ProbeStarted | ProbeProgressed] = []
        self.kept: list[ProbeResult] = []
        self.watched: list[bool] = []
        self.probing = ProbeRuns(
            self.loop,
            replace(PROBE, worker=worker, cpu=replace(PROBE.cpu, algorithms=("default", "ring"))),
            ProbeHost(self.loop, ProbeSettings(python=sys.executable, deadline=30.0), lambda: self.report, self._watch),
            publish=self.told.append,
            store=self.kept.append,
            record=RunRecord(worker.with_name("run.json")),
        )
        self.scheduler = ProbeScheduler(self.loop, self.probing, Timetable(interval=3600, jitter=0, first_after=3600))

    def _watch(self, *, closely: bool) -> None:
        self.watched.append(closely)

    def gate(self, command: str, *, seconds: float = 60.0) -> None:
        """Ask the scheduler by this line of the shell."""
        host = self.probing.host
        host.settings = replace(host.settings, gate=("/bin/sh", "-c", command), gate_seconds=seconds)

    def turn_until(self, done: Callable[[], bool]) -> None:
        turn_until(self.loop, done)

    def request(self, name: str = "allreduce") -> ProbeRequest:
        future: Future[ProbeRequest] = self.probing.request(name)
        self.turn_until(future.done)
        return future.result()

    def run(self, name: str = "allreduce") -> str:
        """Start one, and wait until its ranks are at work."""
        answer = self.request(name)
        assert answer.accepted, answer
        self.turn_until(lambda: any(isinstance(one, ProbeProgressed) for one in self.told))
        return answer.id


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Its agent knows another probe, too. Every child has ended when the test is over."""
    before = unreaped()
    one = Bench(tmp_path / "worker.py")
    monkeypatch.setitem(PROBES, "broadcast", replace(PROBES["allreduce"], name="broadcast", worker=one.worker))
    yield one
    one.probing.stop()
    one.turn_until(lambda: not one.probing.running and unreaped() <= before)


def test_a_probe_that_is_not_enabled_does_not_run_on_request(bench: Bench) -> None:
    """probe.enabled is for runs by request too: the answer says disabled, and names the setting."""
    bench.probing.host.settings = replace(bench.probing.host.settings, enabled=False)
    answer = bench.request()
    assert (answer.accepted, answer.reason) == (False, "disabled")
    assert "probe.enabled" in answer.hint
    assert [(one.id, one.outcome, one.reason) for one in bench.kept] == [(answer.id, "skipped", "disabled")]


def test_a_run_that_is_due_before_the_first_poll_waits_for_it(bench: Bench) -> None:
    """Slow drivers do not cost the first run: it begins once the GPUs have been looked at."""
    seen, bench.report = bench.report, Report(started=0.0, simulated="h100x8")
    bench.scheduler.run_due()
    turn_for(bench.loop, 2 * WATCH_SECONDS)
    assert (bench.probing.running, bench.kept) == (False, [])

    bench.report = replace(seen, node=replace(seen.node, snapshot_timestamp_seconds=1.0))
    bench.turn_until(lambda: bench.probing.running)


def test_a_run_after_a_repair_is_due_until_it_is_made(bench: Bench) -> None:
    """A GPU was reset since the last run: the next need not wait for its time, and there is no second one."""
    seen = on_host(node(0.0, 0.0, simulated=False))
    links = replace(seen.internal.links, snapshot=LinksSnapshot(ended_at=0.0, contained=False, schedulers=()))
    before = ProbeResult(
        id="r0",
        probe="allreduce",
        outcome="degraded",
        started=1000.0,
        ranks=2,
        conditions=Conditions(gpus=("GPU-0", "GPU-1"), host_gpus=2),
    )
    known = replace(seen, internal=replace(seen.internal, links=links), probe=ProbeState(last=before, ran=(before,)))
    bench.report = known
    assert not bench.scheduler.is_due_early()
    reset = replace(known.gpus[1], reset_at=boot_clock())
    bench.report = replace(known, gpus=(known.gpus[0], reset))
    assert bench.scheduler.is_due_early()
    bench.scheduler.run_due()
    bench.turn_until(lambda: bench.probing.running)
    assert not bench.scheduler.is_due_early()


def test_excluded_gpus_are_not_missed(bench: Bench) -> None:
    """A GPU that the configuration excludes is on the bus and expected, never seen, and no reason to skip."""
    bench.report = replace(node(0.0, 0.0), node=Node(gpus_expected=3.0))
    refused = bench.request()
    assert (refused.reason, "1 of 3" in refused.hint) == ("busy", True)
    bench.report = replace(bench.report, excluded=("00000000:61:00.0",))
    assert bench.request().accepted


@pytest.mark.parametrize("taken", [node(0.0, 1.0), node(0.0, 0.0, utilization_ratio=0.5)])
def test_a_run_gives_way_to_a_job_that_comes(bench: Bench, taken: Report) -> None:
    """When somebody takes a GPU during a run, the ranks are killed, and the result is a skip: busy."""
    run = bench.run()
    bench.report = taken
    bench.turn_until(lambda: bool(bench.kept))
    [result] = bench.kept
    assert (result.id, result.outcome, result.reason) == (run, "skipped", "busy")
    assert "GPU 1" in result.hint
    assert not bench.probing.running


@pytest.mark.slow
def test_a_stranger_on_real_gpus_ends_the_run(bench: Bench) -> None:
    """Told from the ranks by its pid; while they run, and a little after, the processes are read at every poll."""
    bench.report = on_host(node(0.0, 0.0, simulated=False))
    run = bench.run()
    assert bench.watched == [True]
    own = sorted(bench.probing.host.holders(), key=lambda one: one.pid)
    bench.report = on_host(node(1.0, 1.0, simulated=False, utilization_ratio=1.0), [one.pid for one in own])
    turn_for(bench.loop, 4 * WATCH_SECONDS)
    assert bench.probing.running

    bench.report = on_host(node(1.0, 1.0, simulated=False), [own[0].pid, 1])
    bench.turn_until(lambda: not bench.probing.host.holders())
    turn_for(bench.loop, 4 * WATCH_SECONDS)
    assert bench.probing.running, "NVML still lists a rank"
    bench.report = on_host(node(1.0, 0.0, simulated=False), [1])
    bench.turn_until(lambda: bool(bench.kept))
    [result] = bench.kept
    assert (result.id, result.outcome, result.reason) == (run, "skipped", "busy")
    assert result.hint == "Another process came to GPU 1. Run again when the GPUs are free."
    bench.turn_until(lambda: bench.watched == [True, False])


@pytest.mark.parametrize(
    ("pids", "memory", "asked_at", "left"),
    [
        (True, 0.0, 4e9, "rank {pid} of the probe, which NVML still lists on GPU 0"),
        (False, 4e9, 4e9, "GPU 0, which has 3.7 GiB in use"),
        (False, 0.0, 1.0, "NVML was not read within 0.3 s"),
    ],
)
def test_what_stays_on_a_gpu_after_a_run_is_told_and_not_waited_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, *, pids: bool, memory: float, asked_at: float, left: str
) -> None:
    """The outcome stands; the hint says what NVML still shows, or that nobody has looked."""
    monkeypatch.setattr(gpu_visibility, "DEPARTURE_PATIENCE", 0.3)
    bench.worker.write_text(HANG.replace("time.sleep(60)", "sys.exit(1)"))
    bench.report = on_host(node(0.0, 0.0, simulated=False))
    assert bench.request().accepted
    [pid] = sorted(holder.pid for holder in bench.probing.host.holders())[:1]
    bench.report = asked(bench.report, 1.0)
    shown = on_host(node(0.0, 0.0, simulated=False, memory_used_bytes=memory), [pid] if pids else [])
    bench.turn_until(lambda: not bench.probing.host.holders())
    bench.report = asked(shown, asked_at)
    bench.turn_until(lambda: bool(bench.kept))
    [result] = bench.kept
    assert (result.outcome, result.reason) == ("failed", "setup")
    assert left.format(pid=pid) in result.hint
    assert not bench.probing.running


def test_memory_that_a_rank_leaves_is_what_the_guard_would_not_call_idle() -> None:
    """A driver that tells its own memory apart shows less than a GiB; elsewhere it may be the driver's."""
    used = {"memory_used_bytes": float(300 << 20)}
    for told, words in (({}, []), ({"memory_reserved_bytes": 0.0}, ["GPU 0, which has 0.3 GiB in use"])):
        report = on_host(node(0.0, simulated=False, **used, **told))
        left = gpu_visibility.remaining_on(report, ["GPU-0"], frozenset(), 0.0)
        assert [one.description for one in left or ()] == words


@pytest.mark.parametrize("stays", ["unread", "unknown"])
def test_a_run_ends_when_nobody_sees_any_more_who_holds_its_gpus(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, stays: str
) -> None:
    """A GPU is not polled any more, or its processes cannot be read: a job that came would not be seen."""
    monkeypatch.setattr(preflight, "UNSEEN_SECONDS", 0.5)
    free = on_host(node(0.0, 0.0, simulated=False))

    def polled(at: float, processes: float | None = 0.0) -> Report:
        known = {
            gpu.bus_id: GpuRecord(bus_id=gpu.bus_id, uuid=gpu.uuid, index=gpu.index, read_at=at) for gpu in free.gpus
        }
        known["1"] = replace(known["1"], read_at=known["1"].read_at if stays == "unknown" else 0.0)
        second = replace(free.gpus[1], gpu=replace(free.gpus[1].gpu, processes=processes))
        memory = replace(free.internal, inventory=GpuInventory(gpus=known))
        return replace(free, gpus=(free.gpus[0], second), internal=memory)

    bench.report = polled(0.0)
    run = bench.run()

    def over() -> bool:
        bench.report = polled(boot_clock(), None if stays == "unknown" else 0.0)
        return bool(bench.kept)

    bench.turn_until(over)
    [result] = bench.kept
    assert (result.id, result.outcome, result.reason) == (run, "skipped", "busy")
    assert "the processes on GPU 1 were not read: a job may have started." in result.hint


@pytest.mark.parametrize("contained", [False, True])
def test_what_the_ranks_of_one_algorithm_leave_is_no_stranger_to_the_next(bench: Bench, *, contained: bool) -> None:
    """Who holds the GPUs is told as it was at the last poll, when they were still there."""
    bench.worker.write_text(f"import os, time\nif os.environ.get('NCCL_ALGO'): time.sleep(60)\n{MEASURE}")
    bench.report = on_host(node(0.0, 0.0, simulated=False), contained=contained)
    assert bench.request().accepted
    first = [holder.pid for holder in bench.probing.host.holders()]
    bench.turn_until(lambda: any(isinstance(one, ProbeProgressed) for one in bench.told))
    shown = [900_001, 900_002] if contained else first
    later = on_host(node(1.0, 1.0, simulated=False), shown, contained=contained)
    bench.report = asked(later, 1.0)
    bench.turn_until(lambda: bool(bench.kept) or not {holder.pid for holder in bench.probing.host.holders()} & {*first})
    turn_for(bench.loop, 4 * WATCH_SECONDS)
    assert (bench.kept, len(bench.probing.host.holders())) == ([], 2)


def test_a_rank_that_has_ended_is_no_stranger_to_the_others(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML still lists it as the last poll saw it, while they are about to end."""
    monkeypatch.setattr(gpu_visibility, "DEPARTURE_PATIENCE", 0.3)
    bench.worker.write_text(HANG.replace("time.sleep(60)", "sys.exit(1) if orders['rank'] else time.sleep(60)"))
    bench.report = on_host(node(0.0, 0.0, simulated=False))
    assert bench.request().accepted
    both = [holder.pid for holder in bench.probing.host.holders()]
    bench.turn_until(lambda: bool(bench.told[1:]))
    bench.report = on_host(node(1.0, 1.0, simulated=False), both)
    bench.turn_until(lambda: bool(bench.kept))
    assert (bench.kept[0].outcome, bench.kept[0].reason) == ("failed", "setup")


def test_a_job_that_comes_between_two_algorithms_is_a_stranger_in_a_container_too(bench: Bench) -> None:
    """It is known by its number alone: of ours none is there once a poll has begun since they ended."""
    bench.worker.write_text(f"import os, time\nif os.environ.get('NCCL_ALGO'): time.sleep(60)\n{MEASURE}")
    free = on_host(node(0.0, 0.0, simulated=False), contained=True)
    bench.report = asked(free, 1.0)
    assert bench.request().accepted
    first = {holder.pid for holder in bench.probing.host.holders()}
    bench.turn_until(lambda: bool(now := {holder.pid for holder in bench.probing.host.holders()}) and not now & first)
    assert not bench.kept
    bench.report = on_host(node(0.0, 1.0, simulated=False), [900_001], contained=True)
    bench.turn_until(lambda: bool(bench.kept))
    assert "Another process came to GPU 1." in bench.kept[0].hint


def test_what_the_agents_own_stop_ends_is_known_under_its_id(bench: Bench) -> None:
    """Whoever asked for it can ask what became of it after a restart; nothing begins after it."""
    run = bench.run()
    bench.probing.stop()
    bench.turn_until(lambda: not bench.probing.running)
    bench.scheduler.run_due()
    answer = bench.request()
    assert (answer.accepted, answer.id) == (False, "")
    assert not bench.probing.running
    [kept] = bench.kept
    assert (kept.id, kept.outcome, kept.reason) == (run, "skipped", "interrupted")
    assert "stopped or restarted" in kept.hint


def test_a_run_in_which_the_agent_is_killed_is_told_of_at_the_next_start(bench: Bench, tmp_path: Path) -> None:
    """Under its id, once; one that the agent has ended, or its own stop, is on record no more."""
    record = RunRecord(tmp_path / "run.json")
    run = bench.run()
    killed = record.interrupted_run()
    assert killed is not None
    assert (killed.id, killed.outcome, killed.reason, killed.trigger) == (run, "skipped", "interrupted", "request")
    assert record.interrupted_run() is None

    bench.probing.stop()
    bench.turn_until(lambda: not bench.probing.running)
    assert record.interrupted_run() is None
    (tmp_path / "run.json").write_text("garbage")
    assert record.interrupted_run() is None


def test_the_run_of_another_agent_that_lives_is_left_alone(bench: Bench, tmp_path: Path) -> None:
    """One that was started on the same store by mistake ends nobody's run; when that agent is dead, it is told of."""
    run = bench.run()
    path = tmp_path / "run.json"
    document = json.loads(path.read_text())
    bench.probing.stop()
    bench.turn_until(lambda: not bench.probing.running)
    with subprocess.Popen(["/bin/sleep", "60"]) as other:
        began = Path(f"/proc/{other.pid}/stat").read_text().rpartition(")")[2].split()[19]
        path.write_text(json.dumps(document | {"agent": f"{other.pid}-{began}"}))
        assert RunRecord(path).interrupted_run() is None
        assert path.exists()
        other.kill()
    killed = RunRecord(path).interrupted_run()
    assert killed is not None
    assert killed.id == run


def test_shared_memory_of_a_run_in_which_the_agent_is_killed_is_deleted(bench: Bench, tmp_path: Path) -> None:
    """By the agent that starts next, which keeps the result too."""
    run = bench.run()
    record = (tmp_path / "run.json").read_text()
    bench.probing.stop()
    bench.turn_until(lambda: not bench.probing.running)
    with tempfile.NamedTemporaryFile(prefix="nccl-", dir="/dev/shm", delete=False) as left:
        left.write(bytes(4096))
    (tmp_path / "run.json").write_text(record)
    bench.probing.start()
    assert not Path(left.name).exists()
    assert [(one.id, one.reason) for one in bench.kept] == [(run, "interrupted")] * 2


# The scheduler


def found(report: Report, *schedulers: str) -> Report:
    """A real host that has been looked at, with these schedulers."""
    links = LinksState(snapshot=LinksSnapshot(ended_at=0.0, contained=False, schedulers=schedulers))
    return replace(
        report,
        node=replace(report.node, snapshot_timestamp_seconds=1.0),
        internal=replace(report.internal, links=links),
    )


def test_where_a_scheduler_is_found_nothing_runs_by_schedule_without_a_gate(bench: Bench) -> None:
    """A person may still run it: they know what the node is for."""
    bench.report = found(node(0.0, 0.0, simulated=False), "slurmd")
    bench.scheduler.run_due()
    bench.turn_until(lambda: bool(bench.kept))
    [skip] = bench.kept
    assert (skip.outcome, skip.reason, skip.trigger) == ("skipped", "no_scheduler_gate", "schedule")
    assert "probe.scheduler_gate" in skip.hint
    assert bench.request().accepted


def test_a_run_that_is_due_waits_to_be_told_of_schedulers(bench: Bench) -> None:
    """An agent that has just begun does not know yet: it runs on no scheduler's node by accident."""
    host = node(0.0, 0.0, simulated=False)
    bench.report = replace(host, node=replace(host.node, snapshot_timestamp_seconds=1.0))
    bench.scheduler.run_due()
    turn_for(bench.loop, 2 * WATCH_SECONDS)
    assert (bench.probing.running, bench.kept) == (False, [])
    bench.report = found(host)
    bench.turn_until(lambda: bench.probing.running)


def test_a_gate_that_gives_the_node_arms_the_schedule(bench: Bench, tmp_path: Path) -> None:
    """It is asked before each set of ranks starts, and told which run it is and which GPUs it would use."""
    bench.worker.write_text(MEASURE)
    bench.gate(f'echo "$GPUMON_PROBE_TRIGGER $GPUMON_PROBE_GPUS" >> {tmp_path}/asked')
    bench.report = found(node(0.0, 0.0), "slurmd")
    bench.scheduler.run_due()
    bench.turn_until(lambda: bool(bench.kept))
    [result] = bench.kept
    assert (result.outcome, result.trigger) == ("ok", "schedule")
    assert (tmp_path / "asked").read_text() == "schedule GPU-0,GPU-1\n" * 2


@pytest.mark.parametrize(
    ("command", "seconds", "reason", "words"),
    [
        (
            "echo asking; echo 'job 4711 is here' >&2; exit 1",
            60.0,
            "busy",
            "(probe.scheduler_gate): job 4711 is here",
        ),
        ("kill -9 $$", 60.0, "scheduler_gate_failed", "signal 9, which means neither yes (0) nor no (1): no output"),
        ("exec sleep 60", 0.2, "scheduler_gate_failed", "0.2 s. Find out why, or raise"),
    ],
)
def test_a_gate_that_does_not_give_the_node_is_a_skip(
    bench: Bench, command: str, seconds: float, reason: str, words: str
) -> None:
    """With its last line as the hint, under the id that the request was given."""
    bench.gate(command, seconds=seconds)
    answer = bench.request()
    assert answer.accepted
    bench.turn_until(lambda: bool(bench.kept))
    [skip] = bench.kept
    assert (skip.id, skip.outcome, skip.reason) == (answer.id, "skipped", reason)
    assert words in skip.hint
    assert not bench.probing.running


def test_a_gate_that_is_not_there_is_a_skip(bench: Bench) -> None:
    """The hint names the command, and what to do."""
    bench.probing.host.settings = replace(bench.probing.host.settings, gate=("/nonexistent/gate",))
    assert bench.request().accepted
    bench.turn_until(lambda: bool(bench.kept))
    [skip] = bench.kept
    assert skip.reason == "scheduler_gate_failed"
    assert "/nonexistent/gate cannot be run: No such file or directory. Set it to a program" in skip.hint


def test_a_job_that_comes_while_the_scheduler_is_asked_is_seen(bench: Bench, tmp_path: Path) -> None:
    """The GPUs are looked at again before the ranks start; another request joins the run."""
    bench.gate(f"while [ ! -e {tmp_path}/answer ]; do sleep 0.05; done")
    answer = bench.request()
    assert bench.request() == ProbeRequest(id=answer.id, accepted=False)
    bench.report = node(0.0, 1.0)
    (tmp_path / "answer").touch()
    bench.turn_until(lambda: bool(bench.kept))
    assert (bench.kept[0].reason, "GPU 1" in bench.kept[0].hint) == ("busy", True)


def test_a_scheduler_that_takes_the_node_back_ends_the_run_between_two_algorithms(bench: Bench, tmp_path: Path) -> None:
    """What was measured until then is kept with the skip."""
    bench.worker.write_text(MEASURE)
    bench.gate(f"mkdir {tmp_path}/asked")
    assert bench.request().accepted
    bench.turn_until(lambda: bool(bench.kept))
    [result] = bench.kept
    assert (result.outcome, result.reason) == ("skipped", "busy")
    assert {measurement.algorithm for measurement in result.measurements} == {"default"}


def test_a_gate_that_is_taken_away_during_a_run_is_asked_no_more(bench: Bench) -> None:
    """The configuration is read again while the first algorithm is measured: the second needs no answer."""
    bench.worker.write_text(MEASURE)
    bench.gate("true")
    bench.run()
    bench.probing.host.settings = replace(bench.probing.host.settings, gate=())
    bench.turn_until(lambda: bool(bench.kept))
    assert bench.kept[0].outcome == "ok"
    assert {measurement.algorithm for measurement in bench.kept[0].measurements} == {"default", "ring"}


def test_the_agents_stop_does_not_wait_for_the_scheduler(bench: Bench) -> None:
    """The question is withdrawn, and the run that was given an id is known."""
    bench.gate("exec sleep 60")
    assert bench.request().accepted
    bench.probing.stop()
    assert (bench.probing.running, [one.reason for one in bench.kept]) == (False, ["interrupted"])


# Another probe


def test_a_run_of_another_probe_is_not_joined(bench: Bench) -> None:
    """What is in progress measures something else: the answer names it, and nothing is recorded."""
    run = bench.run()
    assert bench.request() == ProbeRequest(id=run, accepted=False)
    refused = bench.request("broadcast")
    assert (refused.id, refused.accepted, refused.reason) == ("", False, "busy")
    assert f"Run {run} of allreduce is in progress." in refused.hint
    assert not bench.kept


def test_any_probe_runs_on_request(bench: Bench) -> None:
    """It is told, and recorded, under its own name."""
    run = bench.run("broadcast")
    assert bench.told[0] == ProbeStarted(id=run, probe="broadcast")
    bench.report = node(0.0, 1.0)
    bench.turn_until(lambda: bool(bench.kept))
    assert [(one.id, one.probe) for one in bench.kept] == [(run, "broadcast")]


def test_a_run_by_schedule_waits_for_another_probe(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not lost until the next is due."""
    monkeypatch.setattr(scheduler, "IDLE_INTERVAL", 0.1)
    bench.report = replace(bench.report, node=replace(bench.report.node, snapshot_timestamp_seconds=1.0))
    other = bench.run("broadcast")
    bench.scheduler.run_due()
    turn_for(bench.loop, 2 * WATCH_SECONDS)
    assert not bench.kept
    for pid in bench.probing.host.pids:
        os.kill(pid, signal.SIGKILL)
    bench.turn_until(lambda: len([one for one in bench.told if isinstance(one, ProbeStarted)]) == 2)
    assert [(one.id, one.outcome) for one in bench.kept] == [(other, "failed")]
    assert isinstance(bench.told[-1], ProbeStarted)
    assert bench.told[-1].probe == "allreduce"


# Idleness


def idle(report: Report, *seconds: float) -> Report:
    """A simulated node that has been looked at; nobody has used its GPUs for so long."""
    gpus = (replace(state, idle_since=boot_clock() - long) for state, long in zip(report.gpus, seconds, strict=True))
    return replace(report, gpus=tuple(gpus), node=replace(report.node, snapshot_timestamp_seconds=1.0))


@pytest.mark.slow
def test_a_run_by_schedule_waits_until_nobody_has_used_the_gpus_for_long_enough(bench: Bench) -> None:
    """It is not lost until the next is due. A person need not wait."""
    bench.probing.host.settings = replace(bench.probing.host.settings, idle_seconds=600.0)
    bench.report = idle(node(0.0, 0.0), 3600.0, 540.0)
    bench.scheduler.run_due()
    turn_for(bench.loop, 2 * WATCH_SECONDS)
    assert (bench.probing.running, bench.kept) == (False, [])
    bench.report = idle(node(0.0, 0.0), 3600.0, 601.0)
    bench.turn_until(lambda: bench.probing.running)


def test_a_person_need_not_wait_for_idleness(bench: Bench) -> None:
    """What they ask for is guarded by all the rest."""
    bench.probing.host.settings = replace(bench.probing.host.settings, idle_seconds=600.0)
    bench.report = idle(node(0.0, 0.0), 1.0, 1.0)
    assert bench.request().accepted


@pytest.mark.slow
def test_a_job_that_comes_while_a_run_waits_is_a_skip(bench: Bench) -> None:
    """Of the reason busy: it says who holds the GPUs."""
    bench.probing.host.settings = replace(bench.probing.host.settings, idle_seconds=600.0)
    bench.report = idle(node(0.0, 0.0), 3600.0, 540.0)
    bench.scheduler.run_due()
    turn_for(bench.loop, 2 * WATCH_SECONDS)
    bench.report = idle(node(0.0, 1.0), 3600.0, 1.0)
    bench.turn_until(lambda: bool(bench.kept))
    assert (bench.kept[0].reason, "GPU 1 (1)" in bench.kept[0].hint) == ("busy", True)


# Some of the GPUs


def test_a_partial_run_leaves_out_what_is_in_use(bench: Bench) -> None:
    """It measures the ring alone on the others, and what happens on a GPU that it left out is no reason to end."""
    bench.worker.write_text(MEASURE)
    bench.probing.host.settings = replace(bench.probing.host.settings, partial=True, algorithms=("default", "ring"))
    bench.report = on_host(node(0.0, 1.0, 0.0, simulated=False))
    answer = bench.request()
    assert answer.accepted
    assert bench.probing.host.visibility.gpus == ("GPU-0", "GPU-2")
    bench.turn_until(lambda: bool(bench.kept))
    [result] = bench.kept
    assert (result.outcome, result.ranks) == ("ok", 2)
    assert (result.conditions.gpus, result.conditions.indexes) == (("GPU-0", "GPU-2"), (0, 2))
    assert result.conditions.host_gpus == 3
    assert {measurement.algorithm for measurement in result.measurements} == {"ring"}
    assert ProbeStarted(id=answer.id, gpus=("GPU-0", "GPU-2")) in bench.told


def test_a_run_without_a_gpu_that_was_never_seen_is_a_partial_one(bench: Bench) -> None:
    """It should be here, so what the others come to is not what the host comes to."""
    bench.worker.write_text(MEASURE)
    bench.probing.host.settings = replace(bench.probing.host.settings, partial=True)
    seen = on_host(node(0.0, 0.0, simulated=False))
    bench.report = replace(seen, node=replace(seen.node, gpus_expected=3.0))
    assert bench.request().accepted
    bench.turn_until(lambda: bool(bench.kept))
    [result] = bench.kept
    assert (result.ranks, result.conditions.host_gpus, result.is_whole) == (2, 3, False)


def test_a_partial_run_on_a_simulated_node_leaves_out_what_is_in_use_there(bench: Bench) -> None:
    """Its ranks are on the CPU: they run to their end as if they were on the idle GPUs."""
    bench.probing.host.settings = replace(bench.probing.host.settings, partial=True)
    bench.report = node(0.0, 1.0, 0.0)
    bench.run()
    turn_for(bench.loop, 4 * WATCH_SECONDS)
    assert (bench.probing.running, bench.kept) == (True, [])
    bench.report = node(0.0, 1.0, 1.0)
    bench.turn_until(lambda: bool(bench.kept))
    assert "Another process came to GPU 2." in bench.kept[0].hint


def test_in_a_fabric_of_several_nodes_the_ring_alone_is_measured(bench: Bench) -> None:
    """Unless the configuration says which: NVLink SHARP is shared with jobs on other nodes."""
    bench.worker.write_text(MEASURE)
    rack = on_host(node(0.0, 0.0, simulated=False))
    fabric = Fabric(cluster_uuid="1f0e", clique_id="1", state=3.0)
    bench.report = replace(rack, gpus=tuple(replace(state, fabric=fabric) for state in rack.gpus))
    assert bench.request().accepted
    bench.turn_until(lambda: bool(bench.kept))
    assert {measurement.algorithm for measurement in bench.kept[0].measurements} == {"ring"}

    bench.probing.host.settings = replace(bench.probing.host.settings, algorithms=("default",))
    assert bench.request().accepted
    bench.turn_until(lambda: len(bench.kept) == 2)
    assert {measurement.algorithm for measurement in bench.kept[1].measurements} == {"default"}


SLOW_RANK = """
import json, os, sys
orders = json.loads(sys.stdin.readline())
rank = orders["rank"]
def say(**frame):
    os.write(orders["result"], json.dumps(frame).encode() + b"\\n")
for line in sys.stdin:
    step = json.loads(line)
    if step["do"] == "end":
        say(done=True)
        break
    for size in step.get("sizes", ()):
        say(step=step["number"], bytes=size, seconds=[0.02] * 20, wrong=0)
    for pair in (pair for together in step.get("rounds", ()) for pair in together if rank in pair):
        [peer] = [one for one in pair if one != rank]
        seconds = [0.002 if 3 in pair else 0.001] * 8
        say(step=step["number"], peer=peer, bytes=step["bytes"], seconds=seconds, wrong=0, direct=True)
    say(stepped=step["number"] + 1)
"""
"""Ranks of which one is slow with every other."""


def test_a_slow_gpu_is_named_with_what_the_reports_of_the_run_say_of_it(bench: Bench) -> None:
    """From the figures of the ranks and from what NVML told meanwhile."""
    bench.worker.write_text(SLOW_RANK)
    report = on_host(node(*[0.0] * 8, simulated=False))
    gpus = [replace(gpu, gpu=replace(gpu.gpu, name="NVIDIA H100 80GB HBM3")) for gpu in report.gpus]
    gpus[3] = replace(gpus[3], gpu=replace(gpus[3].gpu, clock_event_active={"hw_thermal": 1.0}))
    bench.report = replace(report, gpus=tuple(gpus))
    assert bench.request().accepted
    bench.turn_until(lambda: bool(bench.kept))
    [result] = bench.kept
    assert (result.outcome, result.reason) == ("degraded", "expected"), result
    assert result.location is not None
    assert result.location.gpus == ("GPU-3",)
    assert result.location.sentence == (
        "GPU 3 (GPU-3) is slow with every other: its clocks were held down by heat (hardware)."
    )
    assert result.hint.endswith(result.location.sentence)


# How far it is


@pytest.mark.parametrize(
    ("step", "stage", "ratio"),
    [
        (0, "measure", 0.25),
        (1, "repeat", 0.5),
    ],
)
def test_progress_is_over_all_that_was_planned(bench: Bench, step: int, stage: str, ratio: float) -> None:
    """Over both passes. What a drop asks for comes after the plan of its pass, and is called a repeat."""
    frame = {"stage": "measure", "step": step, "size": 2, "sizes": 4, "bytes": 1024, "operation": 0, "operations": 20}
    there = f'if step["number"] == {step}:\n        say(**{frame})\n        sys.stdin.read()\n    for size'
    bench.worker.write_text(MEASURE.replace("for size", there).replace("wrong=0", "wrong=1"))
    bench.run()

    def told() -> list[tuple[str, str, float]]:
        heard = [one.progress for one in bench.told if isinstance(one, ProbeProgressed) and one.progress.bytes]
        return [(one.stage, one.algorithm, one.ratio) for one in heard]

    bench.turn_until(lambda: bool(told()))
    assert told()[0] == (stage, "default", ratio)
