"""Containment of ranks, in a cgroup that a test delegates as systemd would, and by the agent as their subreaper."""

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
from gpumon.probe.runner.containment import MOUNTS, CgroupContainment, end_remains, make_containment
from gpumon.probe.runner.process_marks import own_mark

pytestmark = pytest.mark.slow


AGENT = """
import json, os, sys, time
from dataclasses import replace
from pathlib import Path
if sys.argv[1] != "None":
    (Path(sys.argv[1]) / "cgroup.procs").write_text(str(os.getpid()))
from gpumon.probe.runner import ranks
from gpumon.probe.core.baseline import Judge
from gpumon.probe.core.plan import Run, make_plans
from gpumon.probe.core.probes import PROBES
from gpumon.supervisor.loop import Loop
from gpumon.probe.runner.run import Prepared, ProbeRun, Surroundings
ranks.KILL_PATIENCE = 2.0
loop = Loop()
started = ranks.Ranks(loop)
probe = replace(PROBES["allreduce"], worker=Path(sys.argv[2]))
plans = make_plans(probe, (), python=sys.executable, deadline=float(sys.argv[3]))
named = set()
def look():
    named.update(started.pids)
    loop.call_after(0.1, look)
look()
def tell(result):
    told = {"outcome": result.outcome, "reason": result.reason, "hint": result.hint, "log": result.log}
    print(json.dumps({**told, "stuck": started.unkillable, "named": sorted(named)}), flush=True)
    loop.call_after(0.1, wait)
def wait():
    loop.call_after(0.1, wait) if started.unkillable else loop.stop()
run = Run(id="one", trigger="request", started=time.time())
judge = Judge(probe="allreduce", backend="gloo")
ProbeRun(started, run, probe, Surroundings(prepare=lambda: Prepared(plans, judge), on_result=tell)).start()
loop.run()
"""
LEAVE = """
import subprocess
say(stage="measure", size=0, sizes=1, bytes=1024)
left = subprocess.Popen(["sleep", "600"], start_new_session=True, stdin=subprocess.DEVNULL)
Path = __import__("pathlib").Path
Path(__file__).with_name(f"left-{orders['rank']}").write_text(str(left.pid))
"""
"""A rank that has a process in a session of its own, where no signal to the rank's group reaches it."""


@pytest.fixture
def group() -> Iterator[Path]:
    """Delegated, and empty at the end but for what a test has not ended."""
    mount = next((Path("/") / one for one in MOUNTS if (Path("/") / one / "cgroup.procs").exists()), None)
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
    for one in (*path.glob("*/"), path):
        with contextlib.suppress(OSError):
            (one / "cgroup.kill").write_text("1")
    for one in (*path.glob("*/"), path):
        eventually(lambda one=one: not (one / "cgroup.procs").read_text())  # type: ignore[misc]
        one.rmdir()


@pytest.fixture(params=["subreaper", "cgroup"])
def contained(request: pytest.FixtureRequest) -> Path | None:
    """Return the delegated cgroup; None for an agent that has none."""
    return request.getfixturevalue("group") if request.param == "cgroup" else None


@contextlib.contextmanager
def agent(group: Path | None, folder: Path, script: str, deadline: float) -> Iterator[subprocess.Popen[str]]:
    """One that runs once, and ends when nothing is left of that."""
    (folder / "worker.py").write_text(PREAMBLE + LEAVE + script)
    environment = os.environ | {"PYTHONPATH": str(Path(gpumon.__file__).parents[1])}
    command = [sys.executable, "-c", AGENT, str(group), str(folder / "worker.py"), str(deadline)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return found


def left(folder: Path) -> list[int]:
    files = [folder / f"left-{rank}" for rank in range(2)]
    eventually(lambda: all(file.exists() and file.read_text() for file in files))
    return [int(file.read_text()) for file in files]


@pytest.mark.parametrize(
    ("script", "outcome"),
    [("time.sleep(600)", "timeout"), ("os.kill(os.getpid(), signal.SIGSEGV)", "failed"), ("sys.exit(0)", "failed")],
)
def test_what_a_rank_has_started_in_another_session_ends_with_the_run(
    contained: Path | None, tmp_path: Path, script: str, outcome: str
) -> None:
    """However the rank itself ends; and the run leaves no group behind."""
    deadline = STARTED if outcome == "timeout" else 60.0
    if contained is not None:
        (contained / "probe-4711").mkdir()  # of an agent that was killed
    with agent(contained, tmp_path, f"time.sleep(0.5)\n{script}", deadline) as process:
        ends = [os.pidfd_open(pid) for pid in left(tmp_path)]
        assert answer(process)["outcome"] == outcome
        assert all(select.select([end], [], [], 10)[0] for end in ends)
        assert process.wait(60) == 0
    for end in ends:
        os.close(end)
    assert contained is None or not list(contained.glob("*/"))


def test_what_a_rank_has_started_and_cannot_be_killed_is_named(contained: Path | None, tmp_path: Path) -> None:
    """While it is waited for, as no GPU is free then; after that as unkillable as a rank is, until it is gone."""
    program = build(tmp_path)
    with agent(contained, tmp_path, "time.sleep(600)", STARTED) as process:
        stuck = left(tmp_path)
        with held(program, stuck[0]), held(program, stuck[1]):
            found = answer(process)
            assert (found["outcome"], found["reason"], found["stuck"]) == ("timeout", "unkillable", sorted(stuck))
            assert all(str(pid) in found["hint"] for pid in stuck)
            assert set(stuck) < set(found["named"])
        assert process.wait(60) == 0


def test_a_group_that_was_not_delegated_is_left_alone(group: Path) -> None:
    """Root could make groups anywhere, as this test does."""
    os.removexattr(group, "user.delegate")
    child = os.fork()
    if child == 0:
        (group / "cgroup.procs").write_text(str(os.getpid()))
        os._exit(0 if not isinstance(make_containment(), CgroupContainment) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not list(group.glob("*/"))


def test_what_is_left_in_the_group_of_a_killed_agent_is_ended_by_the_next(group: Path) -> None:
    """Nothing of its environment says whose it is; the group of an agent that lives is left alone."""
    dead, living = group / "probe-4711-1", group / f"probe-{own_mark()}"
    commands = ["/bin/sh", "-c", 'echo $$ > "$0"/cgroup.procs; echo; exec sleep 600']
    with ExitStack() as stack:
        started = []
        for one in (dead, living):
            one.mkdir()
            process = subprocess.Popen([*commands, str(one)], stdout=subprocess.PIPE, env={}, start_new_session=True)
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
