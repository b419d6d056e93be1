"""The scheduler gate: no process of its command outlives its answer, its timeout, or the agent."""

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
from gpumon.runner.containment import AGENT, end_orphans, environment
from gpumon.runner.scheduler_gate import Question
from gpumon.supervisor.loop import Loop

LEAVE = """
cd "$0"
trap '' TERM
sleep 600 & echo $! >> pids
setsid sleep 600 & echo $! >> pids
setsid sh -c 'setsid sleep 600 & echo $! >> pids'
touch ready
"""
"""A gate that leaves a process in its group, one in another session, and one whose parent has ended."""
AGENTS = """
import sys
from gpumon.runner.scheduler_gate import Question
from gpumon.supervisor.loop import Loop
loop = Loop()
question = Question(loop, sys.argv[1:], 600.0, {}, print)
loop.run()
"""


@contextmanager
def leftover_processes(folder: Path) -> Iterator[list[int]]:
    """Yield pidfds of the processes that the gate left; kill them after the test."""
    eventually((folder / "ready").exists)
    pids = [int(pid) for pid in (folder / "pids").read_text().split()]
    ends = [os.pidfd_open(pid) for pid in pids]
    try:
        yield ends
    finally:
        for end in ends:
            if not has_ended(end):
                signal.pidfd_send_signal(end, signal.SIGKILL)
            os.close(end)


def has_ended(end: int, *, within: float = 0.0) -> bool:
    return bool(select.select([end], [], [], within)[0])


def children(pid: int) -> set[int]:
    """Return the pids of the children of the main thread that are not reaped."""
    return {int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


@contextmanager
def agent(folder: Path, script: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start an agent that only runs the gate."""
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
def test_all_processes_of_a_gate_end_with_its_answer(
    tmp_path: Path, last: str, seconds: float, words: str | None
) -> None:
    before = children(os.getpid())
    loop, answers = Loop(), list[Skip | None]()
    hold = "while [ ! -e go ]; do sleep 0.05; done\n"
    Question(loop, ("/bin/sh", "-c", LEAVE + hold + last, str(tmp_path)), seconds, {}, answers.append)
    with leftover_processes(tmp_path) as ends:
        assert len(ends) == 3
        (tmp_path / "go").touch()
        turn_until(loop, lambda: bool(answers) and all(map(has_ended, ends)) and children(os.getpid()) == before)
    [answer] = answers
    assert words is None if answer is None else words is not None and words in answer.hint


def test_no_process_of_a_gate_outlives_a_killed_agent(tmp_path: Path) -> None:
    with agent(tmp_path, LEAVE + "exec sleep 600") as process, leftover_processes(tmp_path) as ends:
        process.kill()
        assert all(has_ended(end, within=60.0) for end in ends)


def test_orphans_of_a_gate_are_killed_at_the_next_start(tmp_path: Path) -> None:
    """The next agent kills orphans of a gate whose enclosure was killed too, and no process of a live agent."""
    living = subprocess.Popen(["sleep", "600"], env={**os.environ, **environment()})
    other = subprocess.Popen(["sleep", "600"], env={**os.environ, AGENT: "nobody"})
    try:
        with agent(tmp_path, LEAVE + "sleep 600") as process, leftover_processes(tmp_path) as ends:
            [enclosure] = children(process.pid)
            for pid in (process.pid, enclosure):
                os.kill(pid, signal.SIGSTOP)  # so that neither can clean up
            for pid in (enclosure, process.pid):
                os.kill(pid, signal.SIGKILL)
            process.wait()
            end_orphans().join(60)
            assert all(has_ended(end, within=60.0) for end in ends)
        assert (living.poll(), other.poll()) == (None, None)
    finally:
        for bystander in (living, other):
            bystander.kill()
            bystander.wait()
