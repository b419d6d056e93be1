"""Whatever the ranks do, a run ends in time with its outcome named, and leaves nothing behind."""

from __future__ import annotations

import mmap
import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest
from loops import turn_until
from rank_runs import JUDGE, KILLING, STARTED, Probing, gone, scripted

from gpumon.probe.account import Progress
from gpumon.probe.conclude import SETUP_STAGES
from gpumon.probe.guard import Skip
from gpumon.probe.plan import Plan, Run
from gpumon.probe.result import ProbeResult
from gpumon.supervisor.loop import Loop
from gpumon.supervisor.ranks import LAST_WORDS
from gpumon.supervisor.runs import Runs
from gpumon.supervisor.shared_memory import sweep

STAGES = ("start", "import", "join", "allocate", "warm_up", "measure", "check", "locate", "end")
ARRIVE = """
stage = {stage!r}
print("NCCL WARN the last words at " + stage, flush=True)
if stage in ("allocate", "warm_up", "measure", "check"):
    say(stage=stage, size=0, sizes=1, bytes=1024)
elif stage != "start":
    say(stage=stage)
"""
NOBODY = 65534
WAIT = "time.sleep(600)\n"
CRASH = "if orders['rank'] == 1:\n    os.kill(os.getpid(), signal.SIGSEGV)\n" + WAIT
SHARE = """
import mmap, tempfile
descriptor, path = tempfile.mkstemp(prefix="nccl-", dir="/dev/shm")
os.truncate(descriptor, 4096)
shared = mmap.mmap(descriptor, 4096)
os.close(descriptor)
print(path, flush=True)
"""


@pytest.fixture
def probing() -> Probing:
    return Probing()


@pytest.fixture
def torchless(tmp_path: Path) -> str:
    """An interpreter whose torch can be imported, and no more: for what happens before it is used."""
    folder = tmp_path / "stub" / "torch"
    (folder / "distributed").mkdir(parents=True)
    (folder / "__init__.py").write_text('__version__ = "2.6.0"')
    (folder / "distributed" / "__init__.py").touch()
    path = tmp_path / "python"
    packages = shlex.quote(str(folder.parent))
    path.write_text(f'#!/bin/sh\nshift\nPYTHONPATH={packages} exec {shlex.quote(sys.executable)} -S "$@"\n')
    path.chmod(0o755)
    return str(path)


def results(plans: Mapping[str, Plan]) -> Mapping[str, ProbeResult]:
    """Of one run each, all at once: most of their time is waiting."""
    loop, found = Loop(), dict[str, ProbeResult]()
    for name, plan in plans.items():
        run = Run(id=name, trigger="request", started=time.time())
        Runs(loop).start([plan], run, JUDGE, lambda _: None, lambda one: found.update({one.id: one}))
    turn_until(loop, lambda: len(found) == len(plans))
    return found


def at_every_stage(folder: Path, end: str, deadline: float) -> Mapping[str, ProbeResult]:
    return results(
        {
            stage: scripted(folder / f"{stage}.py", ARRIVE.format(stage=stage) + end, deadline=deadline)
            for stage in STAGES
        }
    )


def test_a_hang_at_any_stage_is_a_timeout_that_names_it(tmp_path: Path) -> None:
    """At the deadline the ranks are ended, wherever they are; the log has what NCCL said last."""
    for stage, result in at_every_stage(tmp_path, WAIT, STARTED).items():
        assert (result.outcome, result.reason) == ("timeout", stage)
        assert f"rank 1: {stage}" in result.hint
        assert f"the last words at {stage}" in result.log
        assert STARTED <= result.duration_seconds < STARTED + KILLING


def test_a_crash_at_any_stage_is_a_failure_that_names_rank_and_stage(tmp_path: Path) -> None:
    """Before the first operation it is the set-up that failed, later the ranks; nobody waits for the deadline."""
    for stage, result in at_every_stage(tmp_path, CRASH, 120.0).items():
        assert (result.outcome, result.reason) == ("failed", "setup" if stage in SETUP_STAGES else "ranks")
        assert result.hint.startswith(f"Rank 1 at {stage}")
        assert f"signal {signal.SIGSEGV.value}" in result.hint
        assert f"the last words at {stage}" in result.log
        assert result.duration_seconds < LAST_WORDS + KILLING


def test_a_rank_that_fails_and_does_not_end_is_not_waited_for(probing: Probing, tmp_path: Path) -> None:
    """What it said counts: its peers, and its own teardown, may hang for as long as the deadline lasts."""
    result = probing.run(scripted(tmp_path / "worker.py", 'say(stage="join")\nsay(error="no route")\n' + WAIT))
    assert (result.outcome, result.reason) == ("failed", "setup")
    assert "no route" in result.hint
    assert result.duration_seconds < LAST_WORDS + KILLING
    assert gone(probing.pids)


def test_frames_without_end_end_the_run(probing: Probing, tmp_path: Path) -> None:
    """A rank that floods the agent with progress is ended long before the deadline, and is the cause."""
    flood = 'n = 0\nwhile orders["rank"]:\n    n += 1\n    say(stage="measure", size=n, sizes=n, bytes=n)\n' + WAIT
    result = probing.run(scripted(tmp_path / "worker.py", flood, deadline=100.0))
    assert (result.outcome, result.reason) == ("failed", "ranks")
    assert "without end" in result.hint
    assert result.duration_seconds < 60
    assert gone(probing.pids)


@pytest.mark.parametrize("end", ["hang", "crash", "abort"])
def test_no_shared_memory_is_left(probing: Probing, tmp_path: Path, end: str) -> None:
    """What NCCL made in /dev/shm and could not delete, the agent deletes when the ranks are gone."""
    last = {"hang": WAIT, "crash": CRASH, "abort": WAIT}[end]
    plan = scripted(tmp_path / "worker.py", SHARE + 'say(stage="measure")\n' + last, deadline=STARTED)
    seen: set[str] = set()

    def look(_: Progress) -> None:
        seen.update(mapped(probing.ranks.pids))
        if end == "abort":
            probing.ranks.abort(Skip(reason="busy", hint="a job has come"))

    result = probing.run(plan, look)
    assert result.outcome == {"hang": "timeout", "crash": "failed", "abort": "skipped"}[end]
    made = {line for line in result.log.splitlines() if line.startswith("/dev/shm/")} | seen
    assert made
    assert not [path for path in made if Path(path).exists()]


def mapped(pids: Iterable[int]) -> Iterator[str]:
    """Files of NCCL in /dev/shm that these processes have mapped."""
    for pid in pids:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            path = line.partition("/dev/shm/nccl-")
            if path[1]:
                yield path[1] + path[2]


def test_shared_memory_of_others_stays(tmp_path: Path) -> None:
    """What somebody has open or mapped, what was there before, is a link, or is not of NCCL, is left alone."""
    for name in ("nccl-open", "nccl-mapped", "nccl-left", "torch_12_left", "other"):
        (tmp_path / name).write_bytes(bytes(4096))
    (tmp_path / "nccl-link").symlink_to(tmp_path / "other")
    made = (tmp_path / "nccl-left").stat().st_ctime
    with (tmp_path / "nccl-mapped").open("r+b") as file:
        kept = mmap.mmap(file.fileno(), 4096)
    with (tmp_path / "nccl-open").open("r+b"), kept:
        assert sweep(tmp_path, since=made + 3600) == ()
        assert sweep(tmp_path, since=made - 3600) == ("nccl-left",)
    assert {path.name for path in tmp_path.iterdir()} == {
        "nccl-open",
        "nccl-mapped",
        "nccl-link",
        "torch_12_left",
        "other",
    }


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_what_a_killed_agent_left_goes_at_the_next_start_unless_root_owns_it() -> None:
    """All files of NCCL of the agent's own user are its ranks'; those of root may be anybody's."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as shared:
        folder = Path(shared)
        folder.chmod(0o777)
        for name, owner in (("nccl-root", 0), ("nccl-own", NOBODY)):
            (folder / name).write_bytes(bytes(4096))
            os.chown(folder / name, owner, owner)
        assert sweep(folder) == ()
        os.seteuid(NOBODY)
        try:
            swept = sweep(folder)
        finally:
            os.seteuid(0)
        assert swept == ("nccl-own",)
        assert [path.name for path in folder.iterdir()] == ["nccl-root"]
