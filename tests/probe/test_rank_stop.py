"""How ranks are stopped, and which Xids that causes."""

from __future__ import annotations

import json
import logging
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from each_case import each_case
from rank_runs import ALL_REDUCE, HANG, KILLING, PREAMBLE, QUICK, Probing, have_ended, make_plan

from gpumon.clock import boot_clock
from gpumon.collectors.kernel_log.watch import KernelLogWatch
from gpumon.model.error_event import NVML, XID, ErrorObservation
from gpumon.probe.core.frames import Progress
from gpumon.probe.core.plan import Misbehave, Plan, encode
from gpumon.probe.core.preflight import Skip
from gpumon.runner import ranks
from gpumon.runner.rank_process import KilledRanks

STOPPED = 4
"""Exit status of a rank that has ended by itself on SIGTERM."""
GPUS = ("GPU-0", "GPU-1")
DRIVER = """
import atexit, os, signal, sys, threading
from unittest.mock import MagicMock
aborted, calls = threading.Event(), 0
def show(text):
    with open(f"{{os.path.dirname(__file__)}}/{{os.getpid()}}.log", "a") as log:
        log.write(text + "\\n")
def run_kernel(*_, **__):
    global calls
    calls += 1
    if calls == 1:
        show("kernel started")
    {kernel}
def abort():
    show("communicator aborted")
    aborted.set()
atexit.register(show, "context closed")
torch = MagicMock()
torch.__version__ = "2.13.0"
torch.empty.return_value.element_size.return_value = 4
torch.distributed.barrier = torch.distributed.all_reduce = run_kernel
torch.distributed.group.WORLD._get_backend.return_value.abort = abort
sys.modules.update({{"torch": torch, "torch.distributed": torch.distributed}})
"""
"""A stand-in for torch with CUDA and NCCL, whose barriers and all-reduces run `kernel`. As in NCCL, an abort ends a
kernel that waits for another rank; the operation then returns without an exception, and its data is incomplete.
"""
ENDS_ON_ABORT = "aborted.wait()"
ENDLESS = "threading.Event().wait()"
STARTED, ABORTED, CLOSED = "kernel started", "communicator aborted", "context closed"


@pytest.fixture
def probing(monkeypatch: pytest.MonkeyPatch) -> Probing:
    """Return ranks that are not killed on a busy machine while they end."""
    monkeypatch.setattr(ranks, "TERM_PATIENCE", 60.0)
    return Probing()


@pytest.fixture
def driver(tmp_path: Path) -> Callable[[str], Plan]:
    """Return a factory of plans for two ranks on GPUs whose barriers and all-reduces run this kernel."""

    def make(kernel: str) -> Plan:
        (tmp_path / "torch").mkdir(exist_ok=True)
        (tmp_path / "torch" / "__init__.py").write_text(DRIVER.format(kernel=kernel))
        path = tmp_path / "python"
        packages = shlex.quote(str(tmp_path))
        path.write_text(f'#!/bin/sh\nshift\nPYTHONPATH={packages} exec {shlex.quote(sys.executable)} -S "$@"\n')
        path.chmod(0o755)
        return make_plan(QUICK, GPUS, python=str(path))

    return make


def abort_when(probing: Probing, plan: Plan, is_time: Callable[[Progress], bool]) -> None:
    """Run a probe that gives way to a job as soon as `is_time` returns True for the last progress."""

    def watch() -> None:
        if probing.progress and is_time(probing.progress[-1]):
            probing.ranks.abort(Skip(reason="busy", hint="a job has come"))
        elif probing.ranks.running:
            probing.loop.call_after(0.01, watch)

    probing.loop.call_after(0.01, watch)
    result = probing.run(plan)
    assert (result.outcome, result.reason) == ("skipped", "busy"), result
    assert have_ended(probing.pids)


def logs(folder: Path) -> list[list[str]]:
    """Return what each rank has logged through the stand-in for torch."""
    return [log.read_text().splitlines() for log in (folder / "torch").glob("*.log")]


def exit_statuses(caplog: pytest.LogCaptureFixture) -> list[int]:
    """Return the exit statuses of the ranks from the agent's log."""
    [statuses] = [vars(record)["statuses"] for record in caplog.records if record.message == "stopped the ranks"]
    return list(statuses)


@pytest.mark.parametrize("stage", ["warm_up", pytest.param("check", marks=pytest.mark.slow)])
def test_ranks_of_torch_end_between_operations(probing: Probing, caplog: pytest.LogCaptureFixture, stage: str) -> None:
    """Ranks of a real torch end with a status of their own when a job comes, not by the signal."""
    caplog.set_level(logging.INFO)
    abort_when(probing, make_plan(ALL_REDUCE, (), python=sys.executable), lambda progress: progress.stage == stage)
    assert exit_statuses(caplog) == [STOPPED] * 2


def test_a_rank_that_waits_for_another_aborts_its_communicator(
    probing: Probing, driver: Callable[[str], Plan], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """The abort ends the kernel that waits, after which the interpreter ends normally and closes the CUDA context."""
    caplog.set_level(logging.INFO)
    abort_when(probing, driver(ENDS_ON_ABORT), lambda _: logs(tmp_path) == [[STARTED]] * 2)
    assert exit_statuses(caplog) == [STOPPED] * 2
    assert logs(tmp_path) == [[STARTED, ABORTED, CLOSED]] * 2


def test_a_rank_whose_kernel_never_ends_is_killed(
    probing: Probing,
    driver: Callable[[str], Plan],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """SIGKILL ends a rank that an abort of its communicator does not end."""
    monkeypatch.setattr(ranks, "TERM_PATIENCE", 2.0)
    caplog.set_level(logging.INFO)
    abort_when(probing, driver(ENDLESS), lambda _: logs(tmp_path) == [[STARTED]] * 2)
    assert exit_statuses(caplog) == [-signal.SIGKILL] * 2
    assert logs(tmp_path) == [[STARTED, ABORTED]] * 2


def test_an_aborted_operation_is_not_taken_for_wrong_data(probing: Probing, driver: Callable[[str], Plan]) -> None:
    """A rank that gets SIGTERM in its last checked operation does not report the incomplete data as wrong."""
    measure = driver("").measures[0]
    last = 2 + 3 * (measure.warm_ups + measure.operations) + measure.checks
    kernel = f"if calls == {last}: os.kill(os.getpid(), signal.SIGTERM); aborted.wait()"
    result = probing.run(driver(kernel))
    assert (result.outcome, result.reason) == ("failed", "ranks"), result
    assert f"at check of {measure.sizes[0]} bytes: it ended with status {STOPPED}" in result.hint


def test_a_rank_that_waits_for_a_step_ends(driver: Callable[[str], Plan], tmp_path: Path) -> None:
    """SIGTERM ends a rank to which the agent sends no further step, and its CUDA context is closed."""
    plan = driver("")
    output, result = os.pipe()
    command = [plan.python, *plan.command[1:]]
    with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[result]) as rank:
        os.close(result)
        assert rank.stdin is not None
        rank.stdin.write(plan.orders(0, parent=os.getpid(), result=result, rendezvous=result))
        rank.stdin.write(encode(0, Misbehave(fault="")))
        rank.stdin.flush()
        with os.fdopen(output) as frames:
            next(frame for frame in frames if "stepped" in json.loads(frame))
            rank.terminate()
            assert rank.wait(KILLING) == STOPPED
    assert logs(tmp_path) == [[ABORTED, CLOSED]]


PID = 4711


class ChannelDriver:
    """A driver that removes the channels of processes which end while their kernels run.

    It logs an Xid 45 for each, in the form of drivers since 470 (leptonai/gpud, components/accelerator/nvidia/xid).
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._records = 0
        log.touch()

    def clean_up(self, pids: Iterable[int]) -> None:
        for bus, pid in enumerate(pids):
            self._records += 1
            line = f"NVRM: Xid (PCI:0000:{bus + 1:02x}:00): 45, pid={pid}, name=python3, Ch 00000008"
            with self._log.open("a") as log:
                log.write(f"4,{self._records},{int(boot_clock() * 1e6)},-;{line}\n")


def xid(code: int = 45, *, gpu: str = GPUS[0], later: float = 0.0, **attributes: Any) -> ErrorObservation:
    at = boot_clock() + later
    return ErrorObservation(
        kind=XID, code=code, bus_id="", at=at, since=at, wall=time.time() + later, source=NVML, uuid=gpu, **attributes
    )


@pytest.fixture
def read(tmp_path: Path) -> Callable[[], list[ErrorObservation]]:
    """Return a reader of the kernel log."""
    observations: list[ErrorObservation] = []
    (tmp_path / "kmsg").touch()
    watch = KernelLogWatch(tmp_path / "kmsg", "boot-1")
    watch.resume(None)

    def read_all() -> list[ErrorObservation]:
        observations.extend(watch.read())
        return observations

    return read_all


def _plan(folder: Path, script: str) -> Plan:
    """Return a plan for ranks on two GPUs, which a script without torch never opens."""
    (folder / "worker.py").write_text(PREAMBLE + script)
    return make_plan(replace(QUICK, worker=folder / "worker.py"), GPUS, python=sys.executable, deadline=20.0)


def test_xids_of_ranks_that_give_way_to_a_job_are_own(
    tmp_path: Path, read: Callable[[], list[ErrorObservation]]
) -> None:
    """A run that a job interrupts causes Xids of its ranks, which differ from those of the job by their pids."""
    probing, driver = Probing(), ChannelDriver(tmp_path / "kmsg")
    read()

    def interrupt(_: Progress) -> None:
        probing.ranks.abort(Skip(reason="busy", hint="a job has come"))

    result = probing.run(_plan(tmp_path, HANG), interrupt)
    assert result.outcome == "skipped"
    driver.clean_up((*sorted(probing.pids), PID))
    killed = probing.ranks.killed
    assert [(each.pid == PID, killed.has_caused(each)) for each in read()] == [
        (False, True),
        (False, True),
        (True, False),
    ]
    assert killed.has_caused(xid(gpu=GPUS[1]))
    assert not killed.has_caused(xid(gpu="GPU-2"))


def test_xids_of_a_rank_that_fails_are_not_own(tmp_path: Path) -> None:
    """Only the ranks that were killed because another one failed cause Xids: that of the failed rank is evidence."""
    probing = Probing()
    failing = 'if orders["rank"] == 1:\n    sys.exit(1)\n' + HANG
    assert probing.run(_plan(tmp_path, failing)).outcome == "failed"
    assert [probing.ranks.killed.has_caused(xid(gpu=gpu)) for gpu in GPUS] == [True, False]


@each_case(
    "attributes, own",
    [
        ({}, True),
        ({"code": 43, "later": 30.0}, True),
        ({"pid": PID}, True),
        ({"pid": PID + 1}, False),
        ({"code": 31}, False),
        ({"code": 79, "pid": PID}, False),
        ({"gpu": GPUS[1]}, False),
        ({"later": -5.0}, False),
        ({"later": 200.0}, False),
        ({"pid": PID, "text": "Ch 00000001 caused by previous Xid 149"}, False),
    ],
)
def test_the_window_and_the_process_decide(attributes: dict[str, Any], *, own: bool) -> None:
    """Only Xids 43 and 45 count as own, within a minute of the kill, of its GPU and, if the log names it, its pid."""
    killed = KilledRanks()
    killed.add(PID, GPUS[0])
    assert killed.has_caused(xid(**attributes)) is own


def test_pids_of_another_namespace_are_not_compared() -> None:
    """In a container the kernel log has other pids, so the GPU alone decides."""
    killed = KilledRanks()
    killed.add(PID, GPUS[0])
    assert killed.has_caused(xid(pid=PID + 1), same_pids=False)
