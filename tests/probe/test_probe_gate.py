"""The scheduler's gate: whatever its command starts, nothing of it outlives its answer, its time, or the agent."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agents import eventually
from each_case import each_case
from loops import turn_until

import gpumon
from gpumon.probe.core.preflight import Skip
from gpumon.probe.runner.process_marks import AGENT, end_orphans, environment
from gpumon.probe.runner.scheduler_gate import Question
from gpumon.supervisor.loop import Loop

LEAVE = """
cd "$0"
trap '' TERM
sleep 600 & echo $! >> pids
setsid sleep 600 & echo $! >> pids
setsid sh -c 'setsid sleep 600 & echo $! >> pids'
touch ready
"""
"""A gate that leaves a process in its group, one in another session, and one whose parent is gone."""
AGENTS = """
import sys
from gpumon.probe.runner.scheduler_gate import Question
from gpumon.supervisor.loop import Loop
loop = Loop()
question = Question(loop, sys.argv[1:], 600.0, {}, print)
loop.run()
"""


@contextmanager
def watched(folder: Path) -> Iterator[list[int]]:
    """Descriptors of what the gate has left behind; all are ended after the test."""
    eventually((folder / "ready").exists)
    pids = [int(pid) for pid in (folder / "pids").read_text().split()]
    ends = [os.pidfd_open(pid) for pid in pids]
    try:
        yield ends
    finally:
        for end in ends:
            if not ended(end):
                signal.pidfd_send_signal(end, signal.SIGKILL)
            os.close(end)


def ended(end: int, *, within: float = 0.0) -> bool:
    return bool(select.select([end], [], [], within)[0])


def children(pid: int) -> set[int]:
    """Those that were started from its main thread and are not reaped."""
    return {int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


@contextmanager
def agent(folder: Path, script: str) -> Iterator[subprocess.Popen[bytes]]:
    """One that asks, and does nothing else."""
    environment = os.environ | {"PYTHONPATH": str(Path(gpumon.__file__).parents[1])}
    command = [sys.executable, "-c", AGENTS, "/bin/sh", "-c", script, str(folder)]
    with subprocess.Popen(command, env=environment) as process:
        yield process
        process.kill()


@each_case(
    ("last", "seconds", "words"),
    [
        ("", 60.0, None),
        ("echo no; exit 1", 60.0, "The scheduler refused the node (probe.scheduler_gate): no"),
        (
            "echo kubectl: not found; exit 127",
            60.0,
            "code 127, which means neither yes (0) nor no (1): kubectl:",
        ),
        ("kill -KILL $$", 60.0, "signal 9"),
        ("sleep 600", 3.0, "did not answer within"),
    ],
)
def test_nothing_of_a_gate_is_left_when_it_has_answered(
    tmp_path: Path, last: str, seconds: float, words: str | None
) -> None:
    """In the background, in a session of its own, or without a parent: it ends with the command."""
    before = children(os.getpid())
    loop, answers = Loop(), list[Skip | None]()
    hold = "while [ ! -e go ]; do sleep 0.05; done\n"
    Question(loop, ("/bin/sh", "-c", LEAVE + hold + last, str(tmp_path)), seconds, {}, answers.append)
    with watched(tmp_path) as ends:
        assert len(ends) == 3
        (tmp_path / "go").touch()
        turn_until(loop, lambda: bool(answers) and all(map(ended, ends)) and children(os.getpid()) == before)
    [answer] = answers
    assert words is None if answer is None else words is not None and words in answer.hint


def test_nothing_of_a_gate_outlives_an_agent_that_is_killed(tmp_path: Path) -> None:
    """SIGKILL of the agent alone is enough: nobody has to clear up after it."""
    with agent(tmp_path, LEAVE + "exec sleep 600") as process, watched(tmp_path) as ends:
        process.kill()
        assert all(ended(end, within=60.0) for end in ends)


def test_what_is_left_of_an_agent_all_the_same_is_ended_at_the_next_start(tmp_path: Path) -> None:
    """Its enclosure was killed with it. What another agent has started that lives is left alone.

    Any agent's start will do: that of a test beside this one may be first.
    """
    living = subprocess.Popen(["sleep", "600"], env={**os.environ, **environment()})
    other = subprocess.Popen(["sleep", "600"], env={**os.environ, AGENT: "nobody"})
    try:
        with agent(tmp_path, LEAVE + "sleep 600") as process, watched(tmp_path) as ends:
            [enclosure] = children(process.pid)
            for pid in (process.pid, enclosure):
                os.kill(pid, signal.SIGSTOP)  # so that neither has time to clear up
            for pid in (enclosure, process.pid):
                os.kill(pid, signal.SIGKILL)
            process.wait()
            end_orphans().join(60)
            assert all(ended(end, within=60.0) for end in ends)
        assert (living.poll(), other.poll()) == (None, None)
    finally:
        for one in (living, other):
            one.kill()
            one.wait()
