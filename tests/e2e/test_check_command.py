"""`gpumon check` as schedulers call it: a process of its own, a real agent, an exit code and one line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from agents import AgentProcess, eventually
from stepped_clock import SteppedClock

pytestmark = pytest.mark.slow

SLOW = {"pydantic", "yaml", "fastapi", "http.client", "uvicorn", "jinja2", "sqlite3", "gpumon.health.table"}
"""Modules that are slow to import and that the command does not need."""
IMPORTS = """
import sys
from gpumon.cli.main import main
code = main(sys.argv[1:])
print(*sorted(sys.modules))
sys.exit(code)
"""
SHORT = "--max-age=8s"
"""Longer than the 5 s between evaluations, and short enough for a test."""


class CheckResult(NamedTuple):
    code: int
    line: str
    errors: str


def check(*arguments: str, environment: Mapping[str, str] | None = None) -> CheckResult:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("GPUMON_", "CUDA_", "SLURM_"))}
    ran = subprocess.run(
        [sys.executable, "-m", "gpumon", "check", *arguments],
        env=environ | dict(environment or {}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return CheckResult(ran.returncode, ran.stdout.removesuffix("\n"), ran.stderr)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    agent = AgentProcess(tmp_path, profile="h100x8")
    try:
        yield agent
    finally:
        agent.stop()


def test_a_hung_killed_or_stopped_agent_is_never_ok(agent: AgentProcess) -> None:
    """A healthy node is ok; a hung agent, a lost GPU, a killed agent and a stopped one are not."""
    agent.launch("--web.listen-address=:0")
    store = f"--store.path={agent.folder / 'gpumon.db'}"
    eventually(lambda: check(store) == (0, "GPU OK: 8 GPUs healthy.", ""))
    gpus = json.loads(check(store, "--json").line)["gpus"]
    with_uuid = {"CUDA_VISIBLE_DEVICES": gpus[3]["uuid"]}

    os.kill(agent.process.pid, signal.SIGSTOP)
    hung = eventually(lambda: ran if (ran := check(store, SHORT)).code else None)
    os.kill(agent.process.pid, signal.SIGCONT)
    assert hung.code == 3
    assert "the agent has not evaluated its checks for" in hung.line

    agent.simulate({"gpus": {3: {"lost": True}}})
    lost = eventually(lambda: ran if (ran := check(store)).code == 2 else None)
    assert lost.line.startswith("GPU FAIL: GPU 3: It fell off the bus")
    assert "Do: drain the node and reboot it." in lost.line
    assert check(store, "--for-job", environment={"SLURM_JOB_GPUS": "0,1"}).line == "GPU OK: GPU 0, GPU 1 healthy."
    assert check(store, "--for-job", environment=with_uuid).code == 2
    assert check(store, "--gpu", "9").code == 3
    assert check(environment={"GPUMON_STORE__PATH": str(agent.folder / "gpumon.db")}).code == 2
    assert check(f"--health.file={agent.folder / 'gpumon.db.health.json'}").code == 2

    agent.kill()
    killed = eventually(lambda: ran if "Stale" in (ran := check(store, SHORT)).line else None)
    assert killed.code == 2
    assert "It fell off the bus" in killed.line
    assert check(store, SHORT, "--gpu=0").code == 3

    agent.simulate({})
    agent.launch("--web.listen-address=[::1]:0")
    restarted = eventually(lambda: ran if "Stale" not in (ran := check(store, SHORT)).line else None)
    assert restarted.code == 2, "the verdict on a GPU that came back by itself must remain"
    agent.stop()
    stopped = check(store)
    assert (stopped.code, "the agent was stopped" in stopped.line) == (2, True)


def test_a_reboot_loses_no_failure(tmp_path: Path) -> None:
    """A reboot empties /run: the agent restores the file from its store before it reports READY."""
    (tmp_path / "run").mkdir()
    file = tmp_path / "run" / "health.json"
    agent = AgentProcess(tmp_path, environment={"RUNTIME_DIRECTORY": str(file.parent), "GPUMON_BOOT_ID": "boot-1"})
    try:
        agent.simulate({"gpus": {3: {"lost": True}}})
        agent.start()
        eventually(lambda: check(environment=agent.environment).code == 2)
        agent.kill()
        file.unlink()
        assert check(environment=agent.environment).code == 3
        agent.environment["GPUMON_BOOT_ID"] = "boot-2"
        agent.simulate({})
        agent.launch()
        eventually(file.exists)
        first = check(environment=agent.environment)
        assert first.code == 2
        assert "The node was rebooted since: if it recurs, drain the node and reboot it." in first.line
    finally:
        agent.stop()


@pytest.mark.parametrize(("folder", "code"), [("/dev/shm", 0), (".", 3)])
def test_another_boot_id_is_no_reboot_for_a_file_in_memory(tmp_path: Path, folder: str, code: int) -> None:
    """In systemd-nspawn the agent reads the boot id of the host, and the command that of the container."""
    with tempfile.TemporaryDirectory(dir=tmp_path / folder) as runtime:
        environment = {"RUNTIME_DIRECTORY": runtime, "GPUMON_BOOT_ID": "host"}
        agent = AgentProcess(tmp_path, profile="t4x1", environment=environment)
        try:
            agent.start()
            eventually(lambda: check(environment=agent.environment).code == 0)
            result = check(environment={**agent.environment, "GPUMON_BOOT_ID": "container"})
            assert (result.code, "the node was rebooted since" in result.line) == (code, code == 3)
        finally:
            agent.stop()


def test_a_maintenance_is_in_the_health_file_when_its_command_returns(tmp_path: Path) -> None:
    """A script may call `gpumon check --maintenance-ok` right after it; systemd's folder for the file is below /run."""
    with tempfile.TemporaryDirectory(dir="/run") as runtime:
        agent = AgentProcess(tmp_path, profile="t4x1", environment={"RUNTIME_DIRECTORY": runtime})
        try:
            agent.start()
            for method, query in (("POST", "&for_seconds=600&reason=DIMMs"), ("DELETE", "")):
                agent.post(f"/api/v1/windows?kind=maintenance{query}", method=method)
                document = json.loads((Path(runtime) / "health.json").read_text(encoding="utf-8"))
                assert bool(document["maintenance"]) == (method == "POST")
        finally:
            agent.stop()


def test_a_step_of_the_wall_clock_makes_no_file_stale(tmp_path: Path) -> None:
    """A check right after the step, before the next evaluation, reports ok."""
    clock = SteppedClock(tmp_path)
    agent = AgentProcess(tmp_path, profile="t4x1", environment=clock.environment)
    store = f"--store.path={tmp_path / 'gpumon.db'}"
    try:
        agent.start()
        for step in (0, 86_400, -86_400):
            clock.step(step)
            eventually(lambda: check(store, environment=clock.environment).line.startswith("GPU OK"))
            clock.step(step + 3_600)
            assert check(store, environment=clock.environment) == (0, "GPU OK: 1 GPU healthy.", "")
    finally:
        agent.stop()


def test_a_file_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    """The agent reports it in a notice, and without a file the result is unknown."""
    agent = AgentProcess(
        tmp_path, profile="t4x1", environment={"GPUMON_HEALTH__FILE": str(tmp_path / "none" / "health.json")}
    )
    try:
        agent.start()
        notices = eventually(lambda: agent.get("/api/v1/report")["node"]["notices"])
        assert any("set health.file" in notice["message"] for notice in notices)
        assert check(environment=agent.environment).code == 3
    finally:
        agent.stop()


def test_the_command_imports_nothing_slow(agent: AgentProcess) -> None:
    """Schedulers run it often, so it imports none of the slow modules."""
    agent.start()
    command = [sys.executable, "-c", IMPORTS, "check", f"--store.path={agent.folder / 'gpumon.db'}"]
    eventually(lambda: subprocess.run(command, check=False, capture_output=True).returncode == 0)
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert not SLOW & set(ran.stdout.splitlines()[-1].split())


def test_invalid_arguments_are_unknown_not_fail(tmp_path: Path) -> None:
    """The exit code is 3 for invalid flags and misspelt checks: argparse would exit 2, which means fail."""
    store = f"--store.path={tmp_path / 'none.db'}"
    assert check("--no-such-flag").code == 3
    assert check("--gpu").code == 3
    assert check("--max-age", "long").code == 3
    misspelt = check(store, "--ignore", "gpu_losst")
    assert misspelt.code == 3
    assert "--ignore gpu_losst: there is no such check; there are: " in misspelt.line
    unnamed = check(store, "--for-job")
    assert unnamed.code == 3
    assert "CUDA_VISIBLE_DEVICES" in unnamed.line


@pytest.mark.parametrize("sink", ["ascii", "full"])
def test_a_result_that_cannot_be_printed_keeps_its_exit_code(tmp_path: Path, sink: str) -> None:
    """The exit code is 3, not Python's 1, if the locale lacks a letter or the output is full."""
    command = [sys.executable, "-m", "gpumon", "check", f"--store.path={tmp_path / 'größe.db'}"]
    with Path("/dev/full").open("wb") as full:
        ran = subprocess.run(
            command,
            env={**os.environ, "PYTHONIOENCODING": "ascii"},
            stdout=full if sink == "full" else subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert (ran.returncode, ran.stderr) == (3, b"")
    assert sink == "full" or b"gr\\xf6" in ran.stdout
