"""Probe runs with Reports as input, real rank processes, and results and messages as output."""

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
from agents import unreaped_children
from changed_report import changed, new_report
from loops import turn_for, turn_until
from reader_turns import host_snapshot

from gpumon.clock import boot_clock
from gpumon.config.component_settings import probe_settings
from gpumon.config.load import load
from gpumon.model.gpu import Gpu
from gpumon.model.gpu_state import GpuState
from gpumon.model.node import Node
from gpumon.model.nvlink import Fabric
from gpumon.probe.core import preflight
from gpumon.probe.core.frames import Progress
from gpumon.probe.core.probes import PROBES
from gpumon.probe.core.result import Conditions, ProbeRequest, ProbeResult
from gpumon.probe.core.settings import ProbeSettings, Timetable
from gpumon.probe.core.state import ProbeState
from gpumon.runner import gpu_visibility, scheduler
from gpumon.runner.probe_host import ProbeHost
from gpumon.runner.runs import WATCH_SECONDS, ProbeRuns, RunRecord
from gpumon.runner.scheduler import ProbeScheduler
from gpumon.state.gpu_inventory import GpuInventory
from gpumon.state.messages import ProbeStarted
from gpumon.state.report import HostState, Report
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
def send(**frame):
    os.write(orders["result"], json.dumps(frame).encode() + b"\\n")
send(stage="join")
for line in sys.stdin:
    step = json.loads(line)
    if step["do"] == "end":
        send(done=True)
        break
    for size in step["sizes"]:
        send(step=step["number"], size=size, seconds=[1e-3] * 5, wrong=0)
    send(stepped=step["number"] + 1)
"""
"""Ranks that report correct measurements and exit."""
PROBE = PROBES["allreduce"]


def node(*processes: float, simulated: bool = True, **gpu: float) -> Report:
    """Return a Report of GPUs with these numbers of processes."""
    states = tuple(
        GpuState(bus_id=str(n), uuid=f"GPU-{n}", index=n, gpu=Gpu(processes=count, **gpu))  # type: ignore[arg-type]
        for n, count in enumerate(processes)
    )
    expected = Node(gpus_expected=float(len(states)))
    return new_report(simulated="h100x8" if simulated else None, gpus=states, node=expected, restored=True)


def on_host(report: Report, pids: Sequence[int] = (), *, contained: bool = False) -> Report:
    """Return a Report that is never old and shows all processes of the host, each pid on its own GPU."""
    host = HostState(snapshot=host_snapshot(contained=contained))
    held = [pids[n : n + 1] for n in range(len(report.gpus))]
    gpus = tuple(replace(state, pids=tuple(own)) for state, own in zip(report.gpus, held, strict=True))
    polled_node = replace(report.node, snapshot_timestamp_seconds=1.0)
    return with_pids_read_at(changed(report, gpus=gpus, node=polled_node, host=host), 4e9)


def with_pids_read_at(report: Report, at: float) -> Report:
    """Return the Report with processes that were read at this moment of the boot clock."""
    return changed(report, gpus=tuple(replace(state, pids_at=at) for state in report.gpus))


class Bench:
    """A loop with a probe whose ranks hang; a test changes its Report."""

    def __init__(self, worker: Path) -> None:
        self.worker = worker
        worker.write_text(HANG)
        self.loop = Loop()
        self.report = node(0.0, 0.0)
        self.published: list[ProbeStarted | Progress] = []
        self.results: list[ProbeResult] = []
        self.watch_calls: list[bool] = []
        self.probing = ProbeRuns(
            self.loop,
            {
                "allreduce": replace(PROBE, worker=worker, cpu=replace(PROBE.cpu, algorithms=("default", "ring"))),
                "broadcast": replace(PROBE, worker=worker, name="broadcast"),
            },
            ProbeHost(self.loop, ProbeSettings(python=sys.executable, deadline=30.0), lambda: self.report, self._watch),
            publish=self.published.append,
            store=self.results.append,
            record=RunRecord(worker.with_name("run.json")),
        )
        self.scheduler = ProbeScheduler(self.loop, self.probing, {"allreduce": Timetable(interval=3600)})

    def _watch(self, *, closely: bool) -> None:
        self.watch_calls.append(closely)

    def gate(self, command: str, *, seconds: float = 60.0) -> None:
        """Set this shell command as the scheduler gate."""
        host = self.probing.host
        host.settings = replace(host.settings, gate=("/bin/sh", "-c", command), gate_seconds=seconds)

    def turn_until(self, done: Callable[[], bool]) -> None:
        turn_until(self.loop, done)

    def request(self, name: str = "allreduce") -> ProbeRequest:
        future: Future[ProbeRequest] = self.probing.request(name)
        self.turn_until(future.done)
        return future.result()

    def run(self, name: str = "allreduce") -> str:
        """Start a run, and wait until its ranks report progress."""
        answer = self.request(name)
        assert answer.accepted, answer
        self.turn_until(lambda: any(isinstance(message, Progress) for message in self.published))
        return answer.id


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Yield a bench with a second probe; wait after the test until every child has ended."""
    before = unreaped_children()
    created = Bench(tmp_path / "worker.py")
    monkeypatch.setitem(PROBES, "broadcast", created.probing.probes["broadcast"])
    yield created
    created.probing.stop()
    created.turn_until(lambda: not created.probing.running and unreaped_children() <= before)


def test_a_disabled_probe_does_not_run_on_request(bench: Bench) -> None:
    """With probe.enabled false a request is answered with reason "disabled" and the name of the setting."""
    bench.probing.host.settings = replace(bench.probing.host.settings, enabled=False)
    answer = bench.request()
    assert (answer.accepted, answer.reason) == (False, "disabled")
    assert "probe.enabled" in answer.hint
    assert [(result.id, result.outcome, result.reason) for result in bench.results] == [
        (answer.id, "skipped", "disabled")
    ]


def test_a_run_that_is_due_before_the_first_poll_waits_for_it(bench: Bench) -> None:
    polled_report, bench.report = bench.report, Report(started=0.0, simulated="h100x8")
    bench.scheduler.run_due("allreduce")
    turn_for(bench.loop, 2 * WATCH_SECONDS)
    assert (bench.probing.running, bench.results) == (False, [])

    bench.report = changed(polled_report, node=replace(polled_report.node, snapshot_timestamp_seconds=1.0))
    bench.turn_until(lambda: bench.probing.running)


def test_a_run_after_a_repair_is_due_once(bench: Bench) -> None:
    polled_report = on_host(node(0.0, 0.0, simulated=False))
    host = replace(polled_report.host, snapshot=host_snapshot(contained=False, schedulers=()))
    before = ProbeResult(
        id="r0",
        probe="allreduce",
        outcome="degraded",
        started=1000.0,
        ranks=2,
        conditions=Conditions(gpus=("GPU-0", "GPU-1"), host_gpus=2),
    )
    unrepaired = replace(
        polled_report,
        host=host,
        probe=ProbeState(history=(before,), ran=(before,)),
    )
    bench.report = unrepaired
    assert not bench.scheduler.is_due_early("allreduce")
    reset = replace(unrepaired.gpus[1], reset_at=boot_clock())
    bench.report = changed(unrepaired, gpus=(unrepaired.gpus[0], reset))
    assert bench.scheduler.is_due_early("allreduce")
    bench.scheduler.run_due("allreduce")
    bench.turn_until(lambda: bench.probing.running)
    assert not bench.scheduler.is_due_early("allreduce")


def test_excluded_gpus_are_not_missed(bench: Bench) -> None:
    """A GPU that the configuration excludes is expected but not polled, and no reason to skip."""
    bench.report = changed(node(0.0, 0.0), node=Node(gpus_expected=3.0))
    refused = bench.request()
    assert (refused.reason, "1 of 3" in refused.hint) == ("busy", True)
    bench.report = changed(bench.report, excluded=("00000000:61:00.0",))
    assert bench.request().accepted


@pytest.mark.parametrize("taken", [node(0.0, 1.0), node(0.0, 0.0, utilization_ratio=0.5)])
def test_a_job_interrupts_a_run(bench: Bench, taken: Report) -> None:
    """A process on a GPU of the run ends the run as a skip with reason "busy"."""
    run = bench.run()
    bench.report = taken
    bench.turn_until(lambda: bool(bench.results))
    [result] = bench.results
    assert (result.id, result.outcome, result.reason) == (run, "skipped", "busy")
    assert "GPU 1" in result.hint
    assert not bench.probing.running


@pytest.mark.slow
def test_a_foreign_process_on_real_gpus_ends_the_run(bench: Bench) -> None:
    """A process is foreign if its pid is not that of a rank; processes are read at every poll until after the run."""
    bench.report = on_host(node(0.0, 0.0, simulated=False))
    run = bench.run()
    assert bench.watch_calls == [True]
    own = sorted(bench.probing.host.holders(), key=lambda holder: holder.pid)
    bench.report = on_host(node(1.0, 1.0, simulated=False, utilization_ratio=1.0), [holder.pid for holder in own])
    turn_for(bench.loop, 4 * WATCH_SECONDS)
    assert bench.probing.running

    bench.report = on_host(node(1.0, 1.0, simulated=False), [own[0].pid, 1])
    bench.turn_until(lambda: not bench.probing.host.holders())
    turn_for(bench.loop, 4 * WATCH_SECONDS)
    assert bench.probing.running, "NVML still lists a rank"
    bench.report = on_host(node(1.0, 0.0, simulated=False), [1])
    bench.turn_until(lambda: bool(bench.results))
    [result] = bench.results
    assert (result.id, result.outcome, result.reason) == (run, "skipped", "busy")
    assert result.hint == "Another process came to GPU 1. Run again when the GPUs are free."
    bench.turn_until(lambda: bench.watch_calls == [True, False])


@pytest.mark.parametrize(
    ("pids", "memory", "asked_at", "left"),
    [
        (True, 0.0, 4e9, "rank {pid} of the probe, which NVML still lists on GPU 0"),
        (False, 4e9, 4e9, "GPU 0, which has 3.7 GiB in use"),
        (False, 0.0, 1.0, "NVML was not read within 0.3 s"),
    ],
)
def test_remains_on_a_gpu_after_a_run_are_in_the_hint(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, *, pids: bool, memory: float, asked_at: float, left: str
) -> None:
    """The hint names what NVML still lists after the patience, or that NVML was not read."""
    monkeypatch.setattr(gpu_visibility, "DEPARTURE_PATIENCE", 0.3)
    bench.worker.write_text(HANG.replace("time.sleep(60)", "sys.exit(1)"))
    bench.report = on_host(node(0.0, 0.0, simulated=False))
    assert bench.request().accepted
    [pid] = sorted(holder.pid for holder in bench.probing.host.holders())[:1]
    bench.report = with_pids_read_at(bench.report, 1.0)
    remaining = on_host(node(0.0, 0.0, simulated=False, memory_used_bytes=memory), [pid] if pids else [])
    bench.turn_until(lambda: not bench.probing.host.holders())
    bench.report = with_pids_read_at(remaining, asked_at)
    bench.turn_until(lambda: bool(bench.results))
    [result] = bench.results
    assert (result.outcome, result.reason) == ("failed", "setup")
    assert left.format(pid=pid) in result.hint
    assert not bench.probing.running


def test_remaining_memory_is_what_the_preflight_calls_busy() -> None:
    """0.3 GiB in use count as remains only if the driver reports its own memory separately."""
    used = {"memory_used_bytes": float(300 << 20)}
    for reserved, words in (({}, []), ({"memory_reserved_bytes": 0.0}, ["GPU 0, which has 0.3 GiB in use"])):
        report = on_host(node(0.0, simulated=False, **used, **reserved))
        remains = gpu_visibility.remaining_on(report, ["GPU-0"], frozenset(), 0.0)
        assert [holder.description for holder in remains or ()] == words


@pytest.mark.parametrize("stays", ["unread", "unknown"])
def test_a_run_ends_if_the_processes_on_its_gpus_are_not_read(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, stays: str
) -> None:
    monkeypatch.setattr(preflight, "UNSEEN_SECONDS", 0.5)
    free = on_host(node(0.0, 0.0, simulated=False))

    def polled_report(at: float, processes: float | None = 0.0) -> Report:
        records = {
            gpu.bus_id: GpuState(bus_id=gpu.bus_id, uuid=gpu.uuid, index=gpu.index, read_at=at) for gpu in free.gpus
        }
        records["1"] = replace(records["1"], read_at=records["1"].read_at if stays == "unknown" else 0.0)
        second = replace(free.gpus[1], gpu=replace(free.gpus[1].gpu, processes=processes))
        return changed(free, inventory=GpuInventory(gpus=records), gpus=(free.gpus[0], second))

    bench.report = polled_report(0.0)
    run = bench.run()

    def has_ended() -> bool:
        bench.report = polled_report(boot_clock(), None if stays == "unknown" else 0.0)
        return bool(bench.results)

    bench.turn_until(has_ended)
    [result] = bench.results
    assert (result.id, result.outcome, result.reason) == (run, "skipped", "busy")
    assert "the processes on GPU 1 were not read: a job may have started." in result.hint


@pytest.mark.parametrize("contained", [False, True])
def test_ended_ranks_of_one_algorithm_are_not_foreign_to_the_next(bench: Bench, *, contained: bool) -> None:
    bench.worker.write_text(f"import os, time\nif os.environ.get('NCCL_ALGO'): time.sleep(60)\n{MEASURE}")
    bench.report = on_host(node(0.0, 0.0, simulated=False), contained=contained)
    assert bench.request().accepted
    first = [holder.pid for holder in bench.probing.host.holders()]
    bench.turn_until(lambda: any(isinstance(message, Progress) for message in bench.published))
    shown = [900_001, 900_002] if contained else first
    later = on_host(node(1.0, 1.0, simulated=False), shown, contained=contained)
    bench.report = with_pids_read_at(later, 1.0)
    bench.turn_until(
        lambda: bool(bench.results) or not {holder.pid for holder in bench.probing.host.holders()} & {*first}
    )
    turn_for(bench.loop, 4 * WATCH_SECONDS)
    assert (bench.results, len(bench.probing.host.holders())) == ([], 2)


def test_an_ended_rank_is_not_foreign_to_the_others(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_visibility, "DEPARTURE_PATIENCE", 0.3)
    bench.worker.write_text(HANG.replace("time.sleep(60)", "sys.exit(1) if orders['rank'] else time.sleep(60)"))
    bench.report = on_host(node(0.0, 0.0, simulated=False))
    assert bench.request().accepted
    both = [holder.pid for holder in bench.probing.host.holders()]
    bench.turn_until(lambda: bool(bench.published[1:]))
    bench.report = on_host(node(1.0, 1.0, simulated=False), both)
    bench.turn_until(lambda: bool(bench.results))
    assert (bench.results[0].outcome, bench.results[0].reason) == ("failed", "setup")


def test_a_job_between_two_algorithms_is_foreign_in_a_container(bench: Bench) -> None:
    """In a container any process is foreign if it is listed by a poll that began after the ranks ended."""
    bench.worker.write_text(f"import os, time\nif os.environ.get('NCCL_ALGO'): time.sleep(60)\n{MEASURE}")
    free = on_host(node(0.0, 0.0, simulated=False), contained=True)
    bench.report = with_pids_read_at(free, 1.0)
    assert bench.request().accepted
    first = {holder.pid for holder in bench.probing.host.holders()}
    bench.turn_until(lambda: bool(now := {holder.pid for holder in bench.probing.host.holders()}) and not now & first)
    assert not bench.results
    bench.report = on_host(node(0.0, 1.0, simulated=False), [900_001], contained=True)
    bench.turn_until(lambda: bool(bench.results))
    assert "Another process came to GPU 1." in bench.results[0].hint


def test_a_run_that_ends_with_the_agent_is_recorded(bench: Bench) -> None:
    """A run that the stop of the agent ends is stored as interrupted under its id, and no run starts afterwards."""
    run = bench.run()
    bench.probing.stop()
    bench.turn_until(lambda: not bench.probing.running)
    bench.scheduler.run_due("allreduce")
    answer = bench.request()
    assert (answer.accepted, answer.id) == (False, "")
    assert not bench.probing.running
    [result] = bench.results
    assert (result.id, result.outcome, result.reason) == (run, "skipped", "interrupted")
    assert "stopped or restarted" in result.hint


def test_a_run_of_a_killed_agent_is_recorded_at_the_next_start(bench: Bench, tmp_path: Path) -> None:
    """The next agent reads the interrupted run once; a run that has ended leaves no record."""
    record = RunRecord(tmp_path / "run.json")
    run = bench.run()
    killed = record.interrupted_run()
    assert killed is not None
    assert (killed.id, killed.outcome, killed.reason, killed.trigger) == (run, "skipped", "interrupted", "request")
    assert record.interrupted_run() is None

    bench.probing.stop()
    bench.turn_until(lambda: not bench.probing.running)
    assert record.interrupted_run() is None
    for text in ("garbage", "[" * 100_000, '{"agent": 5, "run": {}, "probe": "allreduce"}', "[]", '{"agent": null}'):
        (tmp_path / "run.json").write_text(text)
        assert record.interrupted_run() is None
        assert not (tmp_path / "run.json").exists(), "the next start must not meet it again"
    os.mkfifo(tmp_path / "run.json")
    assert record.interrupted_run() is None


def test_a_record_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    """A rank may replace the record by a link: the file that it names is neither read nor deleted."""
    (tmp_path / "other").write_text("{}")
    (tmp_path / "run.json").symlink_to(tmp_path / "other")
    assert RunRecord(tmp_path / "run.json").interrupted_run() is None
    assert (tmp_path / "other").exists()


def test_the_run_of_another_live_agent_is_not_recorded(bench: Bench, tmp_path: Path) -> None:
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


def test_shared_memory_of_an_interrupted_run_is_deleted(bench: Bench, tmp_path: Path) -> None:
    run = bench.run()
    record = (tmp_path / "run.json").read_text()
    bench.probing.stop()
    bench.turn_until(lambda: not bench.probing.running)
    with tempfile.NamedTemporaryFile(prefix="nccl-", dir="/dev/shm", delete=False) as shared_memory:
        shared_memory.write(bytes(4096))
    (tmp_path / "run.json").write_text(record)
    bench.probing.start()
    assert not Path(shared_memory.name).exists()
    assert [(result.id, result.reason) for result in bench.results] == [(run, "interrupted")] * 2


# The scheduler


def with_schedulers(report: Report, *schedulers: str) -> Report:
    """Return the Report of a polled host with these schedulers."""
    host = HostState(snapshot=host_snapshot(contained=False, schedulers=schedulers))
    return changed(
        report,
        node=replace(report.node, snapshot_timestamp_seconds=1.0),
        host=host,
    )


def test_a_scheduler_without_a_gate_prevents_scheduled_runs(bench: Bench) -> None:
    bench.report = with_schedulers(node(0.0, 0.0, simulated=False), "slurmd")
    bench.scheduler.run_due("allreduce")
    bench.turn_until(lambda: bool(bench.results))
    [skip] = bench.results
    assert (skip.outcome, skip.reason, skip.trigger) == ("skipped", "no_scheduler_gate", "schedule")
    assert "probe.scheduler_gate" in skip.hint
    assert bench.request().accepted


def test_a_due_run_waits_for_the_scheduler_detection(bench: Bench) -> None:
    host = node(0.0, 0.0, simulated=False)
    bench.report = changed(host, node=replace(host.node, snapshot_timestamp_seconds=1.0))
    bench.scheduler.run_due("allreduce")
    turn_for(bench.loop, 2 * WATCH_SECONDS)
    assert (bench.probing.running, bench.results) == (False, [])
    bench.report = with_schedulers(host)
    bench.turn_until(lambda: bench.probing.running)


def test_a_gate_that_grants_the_node_allows_scheduled_runs(bench: Bench, tmp_path: Path) -> None:
    """The gate runs before each set of ranks, with the trigger and the GPUs in its environment."""
    bench.worker.write_text(MEASURE)
    bench.gate(f'echo "$GPUMON_PROBE_TRIGGER $GPUMON_PROBE_GPUS" >> {tmp_path}/asked')
    bench.report = with_schedulers(node(0.0, 0.0), "slurmd")
    bench.scheduler.run_due("allreduce")
    bench.turn_until(lambda: bool(bench.results))
    [result] = bench.results
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
def test_a_gate_that_refuses_the_node_is_a_skip(
    bench: Bench, command: str, seconds: float, reason: str, words: str
) -> None:
    """A gate that refuses, crashes or times out makes a skip under the id of the request, with its output as hint."""
    bench.gate(command, seconds=seconds)
    answer = bench.request()
    assert answer.accepted
    bench.turn_until(lambda: bool(bench.results))
    [skip] = bench.results
    assert (skip.id, skip.outcome, skip.reason) == (answer.id, "skipped", reason)
    assert words in skip.hint
    assert not bench.probing.running


def test_a_missing_gate_command_is_a_skip(bench: Bench) -> None:
    bench.probing.host.settings = replace(bench.probing.host.settings, gate=("/nonexistent/gate",))
    assert bench.request().accepted
    bench.turn_until(lambda: bool(bench.results))
    [skip] = bench.results
    assert skip.reason == "scheduler_gate_failed"
    assert "/nonexistent/gate cannot be run: No such file or directory. Set it to a program" in skip.hint


def test_a_job_that_starts_while_the_gate_runs_is_a_skip(bench: Bench, tmp_path: Path) -> None:
    """The GPUs are checked again after the gate's answer; a second request joins the run."""
    bench.gate(f"while [ ! -e {tmp_path}/answer ]; do sleep 0.05; done")
    answer = bench.request()
    assert bench.request() == ProbeRequest(id=answer.id, accepted=False)
    bench.report = node(0.0, 1.0)
    (tmp_path / "answer").touch()
    bench.turn_until(lambda: bool(bench.results))
    assert (bench.results[0].reason, "GPU 1" in bench.results[0].hint) == ("busy", True)


def test_a_gate_that_refuses_the_second_algorithm_ends_the_run(bench: Bench, tmp_path: Path) -> None:
    """A run that the gate refuses between two algorithms is a skip with its measurements so far."""
    bench.worker.write_text(MEASURE)
    bench.gate(f"mkdir {tmp_path}/asked")
    assert bench.request().accepted
    bench.turn_until(lambda: bool(bench.results))
    [result] = bench.results
    assert (result.outcome, result.reason) == ("skipped", "busy")
    assert {measurement.algorithm for measurement in result.measurements} == {"default"}


def test_a_gate_that_is_removed_during_a_run_is_not_used(bench: Bench) -> None:
    bench.worker.write_text(MEASURE)
    bench.gate("true")
    bench.run()
    bench.probing.host.settings = replace(bench.probing.host.settings, gate=())
    bench.turn_until(lambda: bool(bench.results))
    assert bench.results[0].outcome == "ok"
    assert {measurement.algorithm for measurement in bench.results[0].measurements} == {"default", "ring"}


def test_the_stop_of_the_agent_does_not_wait_for_the_gate(bench: Bench) -> None:
    """The stop of the agent ends the gate and records the run as interrupted."""
    bench.gate("exec sleep 60")
    assert bench.request().accepted
    bench.probing.stop()
    assert (bench.probing.running, [result.reason for result in bench.results]) == (False, ["interrupted"])


# Another probe


def test_a_run_of_another_probe_is_not_joined(bench: Bench) -> None:
    """A request for another probe is refused with the id of the current run, and is not recorded."""
    run = bench.run()
    assert bench.request() == ProbeRequest(id=run, accepted=False)
    refused = bench.request("broadcast")
    assert (refused.id, refused.accepted, refused.reason) == ("", False, "busy")
    assert f"Run {run} of allreduce is in progress." in refused.hint
    assert not bench.results


def test_any_probe_runs_on_request(bench: Bench) -> None:
    """A run of another probe is published and stored under its own name."""
    run = bench.run("broadcast")
    assert bench.published[0] == ProbeStarted(id=run, probe="broadcast")
    bench.report = node(0.0, 1.0)
    bench.turn_until(lambda: bool(bench.results))
    assert [(result.id, result.probe) for result in bench.results] == [(run, "broadcast")]


def test_a_scheduled_run_waits_for_another_probe(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "IDLE_INTERVAL", 0.1)
    bench.report = changed(bench.report, node=replace(bench.report.node, snapshot_timestamp_seconds=1.0))
    other = bench.run("broadcast")
    bench.scheduler.run_due("allreduce")
    turn_for(bench.loop, 2 * WATCH_SECONDS)
    assert not bench.results
    for pid in bench.probing.host.pids:
        os.kill(pid, signal.SIGKILL)
    bench.turn_until(lambda: len([message for message in bench.published if isinstance(message, ProbeStarted)]) == 2)
    assert [(result.id, result.outcome) for result in bench.results] == [(other, "failed")]
    assert isinstance(bench.published[-1], ProbeStarted)
    assert bench.published[-1].probe == "allreduce"


# Idleness


def idle(report: Report, *seconds: float) -> Report:
    """Return the Report of a polled node whose GPUs have been idle for these seconds."""
    gpus = (replace(state, idle_since=boot_clock() - long) for state, long in zip(report.gpus, seconds, strict=True))
    return changed(report, gpus=tuple(gpus), node=replace(report.node, snapshot_timestamp_seconds=1.0))


@pytest.mark.slow
def test_a_scheduled_run_waits_for_idle_gpus(bench: Bench) -> None:
    bench.probing.host.settings = replace(bench.probing.host.settings, min_idle_seconds=600.0)
    bench.report = idle(node(0.0, 0.0), 3600.0, 540.0)
    bench.scheduler.run_due("allreduce")
    turn_for(bench.loop, 2 * WATCH_SECONDS)
    assert (bench.probing.running, bench.results) == (False, [])
    bench.report = idle(node(0.0, 0.0), 3600.0, 601.0)
    bench.turn_until(lambda: bench.probing.running)


def test_a_requested_run_does_not_wait_for_idle_gpus(bench: Bench) -> None:
    """A requested run starts on GPUs that were in use a second ago."""
    bench.probing.host.settings = replace(bench.probing.host.settings, min_idle_seconds=600.0)
    bench.report = idle(node(0.0, 0.0), 1.0, 1.0)
    assert bench.request().accepted


@pytest.mark.slow
def test_a_job_that_starts_while_a_run_waits_is_a_skip(bench: Bench) -> None:
    """A job makes a waiting run a skip with reason "busy" and the GPU in the hint."""
    bench.probing.host.settings = replace(bench.probing.host.settings, min_idle_seconds=600.0)
    bench.report = idle(node(0.0, 0.0), 3600.0, 540.0)
    bench.scheduler.run_due("allreduce")
    turn_for(bench.loop, 2 * WATCH_SECONDS)
    bench.report = idle(node(0.0, 1.0), 3600.0, 1.0)
    bench.turn_until(lambda: bool(bench.results))
    assert (bench.results[0].reason, "GPU 1 has 1 process" in bench.results[0].hint) == ("busy", True)


def test_a_configured_minimum_bandwidth_decides_the_outcome_of_a_run(bench: Bench) -> None:
    """A run below the limit of the configuration is degraded, because of the limit."""
    bench.worker.write_text(MEASURE)
    limit = {"GPUMON_HEALTH__THRESHOLDS": "{min_allreduce_gloo_busbw_bytes_per_second: 1e18}"}
    bench.probing.host.settings = probe_settings(load(None, {"--simulate": "h100x8"}, limit))
    assert bench.request().accepted
    bench.turn_until(lambda: bool(bench.results))
    [result] = bench.results
    assert (result.backend, result.outcome, result.reason) == ("gloo", "degraded", "limit")


# Some of the GPUs


def test_a_partial_run_omits_gpus_in_use(bench: Bench) -> None:
    """A partial run measures the ring on the idle GPUs, and ignores processes on the others."""
    bench.worker.write_text(MEASURE)
    bench.probing.host.settings = replace(bench.probing.host.settings, partial=True, algorithms=("default", "ring"))
    bench.report = on_host(node(0.0, 1.0, 0.0, simulated=False))
    answer = bench.request()
    assert answer.accepted
    assert bench.probing.host.visibility.gpus == ("GPU-0", "GPU-2")
    bench.turn_until(lambda: bool(bench.results))
    [result] = bench.results
    assert (result.outcome, result.ranks) == ("ok", 2)
    assert (result.conditions.gpus, result.conditions.indexes) == (("GPU-0", "GPU-2"), (0, 2))
    assert result.conditions.host_gpus == 3
    assert {measurement.algorithm for measurement in result.measurements} == {"ring"}
    assert ProbeStarted(id=answer.id, gpus=("GPU-0", "GPU-2")) in bench.published


def test_a_run_without_an_expected_gpu_is_partial(bench: Bench) -> None:
    bench.worker.write_text(MEASURE)
    bench.probing.host.settings = replace(bench.probing.host.settings, partial=True)
    polled_report = on_host(node(0.0, 0.0, simulated=False))
    bench.report = changed(polled_report, node=replace(polled_report.node, gpus_expected=3.0))
    assert bench.request().accepted
    bench.turn_until(lambda: bool(bench.results))
    [result] = bench.results
    assert (result.ranks, result.conditions.host_gpus, result.is_whole) == (2, 3, False)


def test_a_partial_run_on_a_simulated_node_omits_gpus_in_use(bench: Bench) -> None:
    bench.probing.host.settings = replace(bench.probing.host.settings, partial=True)
    bench.report = node(0.0, 1.0, 0.0)
    bench.run()
    turn_for(bench.loop, 4 * WATCH_SECONDS)
    assert (bench.probing.running, bench.results) == (True, [])
    bench.report = node(0.0, 1.0, 1.0)
    bench.turn_until(lambda: bool(bench.results))
    assert "Another process came to GPU 2." in bench.results[0].hint


def test_only_the_ring_is_measured_in_a_multi_node_fabric(bench: Bench) -> None:
    bench.worker.write_text(MEASURE)
    rack = on_host(node(0.0, 0.0, simulated=False))
    fabric = Fabric(cluster_uuid="1f0e", clique_id="1", state=3.0)
    bench.report = changed(rack, gpus=tuple(replace(state, fabric=fabric) for state in rack.gpus))
    assert bench.request().accepted
    bench.turn_until(lambda: bool(bench.results))
    assert {measurement.algorithm for measurement in bench.results[0].measurements} == {"ring"}

    bench.probing.host.settings = replace(bench.probing.host.settings, algorithms=("default",))
    assert bench.request().accepted
    bench.turn_until(lambda: len(bench.results) == 2)
    assert {measurement.algorithm for measurement in bench.results[1].measurements} == {"default"}


SLOW_RANK = """
import json, os, sys
orders = json.loads(sys.stdin.readline())
rank = orders["rank"]
def send(**frame):
    os.write(orders["result"], json.dumps(frame).encode() + b"\\n")
for line in sys.stdin:
    step = json.loads(line)
    if step["do"] == "end":
        send(done=True)
        break
    for size in step.get("sizes", ()):
        send(step=step["number"], size=size, seconds=[0.02] * 20, wrong=0)
    for pair in (pair for together in step.get("rounds", ()) for pair in together if rank in pair):
        [peer] = [other for other in pair if other != rank]
        seconds = [0.002 if 3 in pair else 0.001] * 8
        send(step=step["number"], peer=peer, seconds=seconds, wrong=0, direct=True)
    send(stepped=step["number"] + 1)
"""
"""Ranks of which one is slow with every other."""


def test_a_slow_gpu_is_named_with_its_findings_in_the_reports(bench: Bench) -> None:
    """The location combines the measurements of the ranks with NVML's values during the run."""
    bench.worker.write_text(SLOW_RANK)
    report = on_host(node(*[0.0] * 8, simulated=False))
    gpus = [replace(gpu, gpu=replace(gpu.gpu, name="NVIDIA H100 80GB HBM3")) for gpu in report.gpus]
    gpus[3] = replace(gpus[3], gpu=replace(gpus[3].gpu, clock_event_active={"hw_thermal": 1.0}))
    bench.report = changed(report, gpus=tuple(gpus))
    assert bench.request().accepted
    bench.turn_until(lambda: bool(bench.results))
    [result] = bench.results
    assert (result.outcome, result.reason) == ("degraded", "expected"), result
    assert result.location is not None
    assert result.location.gpus == ("GPU-3",)
    assert result.location.message == (
        "GPU 3 (GPU-3) is slow with every other: its clocks were held down by heat (hardware)."
    )
    assert result.hint.endswith(result.location.message)


# Progress


@pytest.mark.parametrize(
    ("step", "stage", "ratio"),
    [
        (0, "measure", 0.25),
        (1, "repeat", 0.5),
    ],
)
def test_progress_covers_all_planned_steps(bench: Bench, step: int, stage: str, ratio: float) -> None:
    """Progress covers both passes, and the repeat of a low size has the stage "repeat"."""
    frame = {"stage": "measure", "step": step, "index": 2, "sizes": 4, "size": 1024, "operation": 0, "operations": 20}
    there = f'if step["number"] == {step}:\n        send(**{frame})\n        sys.stdin.read()\n    for size'
    bench.worker.write_text(MEASURE.replace("for size", there).replace("wrong=0", "wrong=1"))
    bench.run()

    def reported_progress() -> list[tuple[str, str, float]]:
        sized = [message for message in bench.published if isinstance(message, Progress) and message.size]
        return [(progress.stage, progress.algorithm, progress.ratio) for progress in sized]

    bench.turn_until(lambda: bool(reported_progress()))
    assert reported_progress()[0] == (stage, "default", ratio)
