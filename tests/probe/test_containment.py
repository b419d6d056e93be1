"""Containment of rank processes in a delegated cgroup, and by the agent as their subreaper."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from agents import eventually
from rank_runs import PREAMBLE, STARTED
from unkillable import build, held

import gpumon
from gpumon.runner.containment import MOUNTS, CgroupContainment, end_remains, make_containment, own_mark, start_time

pytestmark = pytest.mark.slow


AGENT = """
import json, os, sys, time
from dataclasses import replace
from pathlib import Path
if sys.argv[1] != "None":
    (Path(sys.argv[1]) / "cgroup.procs").write_text(str(os.getpid()))
from gpumon.runner import ranks
from gpumon.probe.core.baseline import Judge
from gpumon.probe.core.plan import Run, make_plans
from gpumon.probe.core.probes import PROBES
from gpumon.supervisor.loop import Loop
from gpumon.runner.run import Prepared, ProbeRun, Surroundings
ranks.KILL_PATIENCE = 2.0
loop = Loop()
started = ranks.Ranks(loop)
probe = replace(PROBES["allreduce"], worker=Path(sys.argv[2]))
plans = make_plans(probe, (), python=sys.executable, deadline=float(sys.argv[3]))
pids_of_run = set()
def watch_pids():
    pids_of_run.update(started.pids)
    loop.call_after(0.1, watch_pids)
watch_pids()
def print_result(result):
    summary = {"outcome": result.outcome, "reason": result.reason, "hint": result.hint, "log": result.log}
    print(json.dumps({**summary, "stuck": started.unkillable, "pids_of_run": sorted(pids_of_run)}), flush=True)
    loop.call_after(0.1, wait)
def wait():
    loop.call_after(0.1, wait) if started.unkillable else loop.stop()
run = Run(id="one", trigger="request", started=time.time())
judge = Judge(probe="allreduce", backend="gloo")
ProbeRun(started, run, probe, Surroundings(prepare=lambda: Prepared(plans, judge), on_result=print_result)).start()
loop.run()
"""
LEAVE = """
import subprocess
send(stage="measure", index=0, sizes=1, size=1024)
leftover = subprocess.Popen(["sleep", "600"], start_new_session=True, stdin=subprocess.DEVNULL)
Path = __import__("pathlib").Path
Path(__file__).with_name(f"leftover-{orders['rank']}").write_text(str(leftover.pid))
"""
"""A rank that starts a process in another session, which no signal to the rank's process group reaches."""


@pytest.fixture
def group() -> Iterator[Path]:
    """Return a delegated cgroup; delete it and kill its processes after the test."""
    mount = next((Path("/") / folder for folder in MOUNTS if (Path("/") / folder / "cgroup.procs").exists()), None)
    if mount is None:
        pytest.skip("no control groups of version 2")
    path = mount / f"gpumon-test-{os.getpid()}"
    try:
        path.mkdir()
        os.setxattr(path, "user.delegate", b"1")
    except OSError as error:
        with contextlib.suppress(OSError):
            path.rmdir()
        pytest.skip(f"no control group can be made: {error}")
    yield path
    for cgroup in (*path.glob("*/"), path):
        with contextlib.suppress(OSError):
            (cgroup / "cgroup.kill").write_text("1")
    for cgroup in (*path.glob("*/"), path):
        eventually(lambda cgroup=cgroup: not (cgroup / "cgroup.procs").read_text())  # type: ignore[misc]
        cgroup.rmdir()


@pytest.fixture(params=["subreaper", "cgroup"])
def delegated_cgroup(request: pytest.FixtureRequest) -> Path | None:
    """Return the delegated cgroup, or None for an agent without one."""
    return request.getfixturevalue("group") if request.param == "cgroup" else None


@contextlib.contextmanager
def agent(group: Path | None, folder: Path, script: str, deadline: float) -> Iterator[subprocess.Popen[str]]:
    """Start an agent that makes one run and exits when no process of the run remains."""
    (folder / "worker.py").write_text(PREAMBLE + LEAVE + script)
    environment = os.environ | {"PYTHONPATH": str(Path(gpumon.__file__).parents[1])}
    command = [sys.executable, "-c", AGENT, str(group), str(folder / "worker.py"), str(deadline)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def read_result(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    frame: dict[str, Any] = json.loads(process.stdout.readline())
    return frame


def leftover_pids(folder: Path) -> list[int]:
    files = [folder / f"leftover-{rank}" for rank in range(2)]
    eventually(lambda: all(file.exists() and file.read_text() for file in files))
    return [int(file.read_text()) for file in files]


@pytest.mark.parametrize(
    ("script", "outcome"),
    [("time.sleep(600)", "timeout"), ("os.kill(os.getpid(), signal.SIGSEGV)", "failed"), ("sys.exit(0)", "failed")],
)
def test_a_process_in_another_session_is_killed_when_the_run_ends(
    delegated_cgroup: Path | None, tmp_path: Path, script: str, outcome: str
) -> None:
    """The agent kills a rank's processes in other sessions and deletes the cgroup, however the rank ends."""
    deadline = STARTED if outcome == "timeout" else 60.0
    if delegated_cgroup is not None:
        (delegated_cgroup / "probe-4711").mkdir()  # left by a killed agent
    with agent(delegated_cgroup, tmp_path, f"time.sleep(0.5)\n{script}", deadline) as process:
        ends = [os.pidfd_open(pid) for pid in leftover_pids(tmp_path)]
        assert read_result(process)["outcome"] == outcome
        assert all(select.select([end], [], [], 10)[0] for end in ends)
        assert process.wait(60) == 0
    for end in ends:
        os.close(end)
    assert delegated_cgroup is None or not list(delegated_cgroup.glob("*/"))


def test_an_unkillable_process_of_a_rank_is_named(delegated_cgroup: Path | None, tmp_path: Path) -> None:
    program = build(tmp_path)
    with agent(delegated_cgroup, tmp_path, "time.sleep(600)", STARTED) as process:
        stuck = leftover_pids(tmp_path)
        with held(program, stuck[0]), held(program, stuck[1]):
            result = read_result(process)
            assert (result["outcome"], result["reason"], result["stuck"]) == ("timeout", "unkillable", sorted(stuck))
            assert all(str(pid) in result["hint"] for pid in stuck)
            assert set(stuck) < set(result["pids_of_run"])
        assert process.wait(60) == 0


def test_empty_cgroup_of_another_agent_that_runs_is_kept(tmp_path: Path) -> None:
    """Its ranks may be about to be added. The cgroup of a dead agent is removed."""
    parent, child = tmp_path / "sys/fs/cgroup/unit", os.fork()
    if child == 0:
        signal.pause()
    try:
        living, dead = parent / f"probe-{child}-{start_time(Path(f'/proc/{child}'))}", parent / "probe-4711-1"
        for folder in (living, dead, tmp_path / "proc/self"):
            folder.mkdir(parents=True)
        (parent / "cgroup.procs").write_text(f"{os.getpid()}\n")
        (tmp_path / "proc/self/cgroup").write_text("0::/unit\n")
        delegate(parent)
        end_remains(tmp_path)
        assert (living.exists(), dead.exists()) == (True, False)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def delegate(folder: Path) -> None:
    """Mark the folder as delegated, which an agent of root needs."""
    try:
        os.setxattr(folder, "user.delegate", b"1")
    except OSError as error:
        if os.geteuid() == 0:
            pytest.skip(f"no extended attributes: {error}")


def test_a_cgroup_that_is_not_delegated_is_unused(group: Path) -> None:
    """The agent creates no cgroup below one that systemd has not delegated."""
    os.removexattr(group, "user.delegate")
    child = os.fork()
    if child == 0:
        (group / "cgroup.procs").write_text(str(os.getpid()))
        os._exit(0 if not isinstance(make_containment(), CgroupContainment) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not list(group.glob("*/"))


def test_processes_in_the_cgroup_of_a_killed_agent_are_killed_at_the_next_start(group: Path) -> None:
    dead, living = group / "probe-4711-1", group / f"probe-{own_mark()}"
    commands = ["/bin/sh", "-c", 'echo $$ > "$0"/cgroup.procs; echo; exec sleep 600']
    with ExitStack() as stack:
        started = []
        for cgroup in (dead, living):
            cgroup.mkdir()
            process = subprocess.Popen([*commands, str(cgroup)], stdout=subprocess.PIPE, env={}, start_new_session=True)
            started.append(stack.enter_context(process))
            stack.callback(process.kill)
            assert process.stdout is not None
            process.stdout.readline()
        child = os.fork()
        if child == 0:
            (group / "cgroup.procs").write_text(str(os.getpid()))
            end_remains()
            os._exit(0)
        os.waitpid(child, 0)
        assert started[0].wait(10) == -signal.SIGKILL
        assert started[1].poll() is None
