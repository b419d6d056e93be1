"""`gpumon probe hold` and `unhold` where no agent runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from agents import eventually
from stores import read

from gpumon.cli import offline_hold, probe_hold
from gpumon.cli.main import main
from gpumon.model.time_window import in_force
from gpumon.probe.core.probes import PROBES
from gpumon.probe.runner.process_marks import AGENT, GPUS, RANK, own_mark
from gpumon.store import windows
from gpumon.store.store import Store

WORKER = str(PROBES["allreduce"].worker)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a store that an agent has left."""
    path = tmp_path / "gpumon.db"
    Store.open(path).close()
    return path


@pytest.fixture
def flags(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Nobody listens there."""
    monkeypatch.setattr(probe_hold, "PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr(offline_hold, "KILLED_SECONDS", 0.2)
    return [f"--store.path={path}"]


@contextmanager
def rank(agent: int, gpus: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """What looks like one that this process has started."""
    command = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()", WORKER]
    environment = {AGENT: str(agent), GPUS: gpus}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def owners(path: Path) -> list[str]:
    with Store.open(path) as store:
        return [one.owner for one in in_force(read(store, windows.read))]


def test_the_next_agent_finds_it_in_the_store(path: Path, flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Each owner has one there too; the end of one is written as well."""
    for owner in ("4711", "4712", "4711"):
        assert main(["probe", "hold", "--owner", owner, *flags]) == 0
    assert (
        "No agent runs, so no process of gpumon is on a GPU. This is stored for the next agent."
        in capsys.readouterr().out
    )
    assert owners(path) == ["4712", "4711"]
    assert main(["probe", "unhold", "--owner", "4712", "--json", *flags]) == 0
    document = json.loads(capsys.readouterr().out)
    assert ([one["owner"] for one in document["hold"]["holders"]], document["stored"]) == (["4711"], True)
    assert owners(path) == ["4711"]


def test_what_the_agent_would_refuse_is_refused(
    path: Path, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """By the same setting."""
    assert main(["probe", "hold", "--ttl", "8d", *flags]) == 2
    assert "probe.max_hold_seconds, which is 604800" in capsys.readouterr().err
    assert owners(path) == []


def test_a_store_that_is_in_use_has_an_agent(path: Path, flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """It starts, it ends, or it is asked at a wrong address: nobody can tell what it has on the GPUs."""
    with Store.open(path):
        assert main(["probe", "hold", *flags]) == 1
    said = capsys.readouterr().err
    assert "is using it" in said
    assert "no agent answers at" in said


def test_a_store_that_cannot_be_written_keeps_no_job_waiting(
    path: Path, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """There is no agent; only the next one would not know."""
    path.write_text("no store of ours, and longer than the head of one" * 3)
    path.with_name("gpumon.db.lock").unlink()
    assert main(["probe", "hold", *flags]) == 0
    assert "This could not be stored for the next agent" in capsys.readouterr().out


def test_a_rank_that_its_agent_has_left_is_named(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """After kill -9 of the agent its ranks may need a moment; what is there after that is on a GPU, maybe."""
    with rank(agent=1) as left:
        assert main(["probe", "hold", *flags]) == 1
        assert f"(process {left.pid})" in capsys.readouterr().err
    with rank(agent=os.getpid()):  # of another agent, which simulates
        assert main(["probe", "hold", *flags]) == 0


def test_an_agent_that_was_not_found_and_runs_a_probe_is_named(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """It listens elsewhere, and its ranks say that there is one: the GPUs are not free."""
    with rank(agent=os.getpid(), gpus="GPU-0,GPU-1"):
        assert main(["probe", "hold", *flags]) == 1
    told = capsys.readouterr()
    assert f"Another agent (process {os.getpid()}) runs on GPUs of this host" in told.err
    assert "--store.path or --web.socket" in told.err
    assert "No agent runs" not in told.out


def test_an_idle_agent_that_was_not_found_is_named(
    flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It knows of no hold, and its next run comes. One that simulates takes no GPU, nor can it without one."""
    program = tmp_path / "gpumon"
    program.write_text("import sys; print(flush=True); sys.stdin.read()")
    (tmp_path / "nvidia0").touch()
    for devices, more, code in ((tmp_path, "", 1), (tmp_path, "--simulate=h100x8", 0), (tmp_path / "none", "", 0)):
        monkeypatch.setattr(offline_hold, "DEVICES", devices)
        command = [sys.executable, str(program), "serve", *filter(None, [more])]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as agent:
            assert agent.stdout is not None
            agent.stdout.readline()
            assert main(["probe", "hold", *flags]) == code
            assert (f"{agent.pid}" in capsys.readouterr().err) == bool(code)
            agent.kill()


def test_what_a_rank_has_started_and_left_is_named_too(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A process in a session of its own, and of another program, is identified by its environment."""
    for agent, code in (("1-1", 1), (own_mark(), 0)):
        ended = True
        while ended:  # an agent of another test that starts now kills what it finds without its agent
            with subprocess.Popen(
                ["/bin/sleep", "600"], env={AGENT: agent, RANK: "1.0"}, start_new_session=True
            ) as left:
                eventually(lambda pid=left.pid: AGENT.encode() in Path(f"/proc/{pid}/environ").read_bytes())  # type: ignore[misc]
                exit_code = main(["probe", "hold", *flags])
                ended = left.poll() is not None
                left.kill()
        assert exit_code == code
        assert (f"(process {left.pid})" in capsys.readouterr().err) == bool(code)
