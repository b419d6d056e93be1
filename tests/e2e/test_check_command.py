"""`gpumon check` as schedulers call it: a process of its own, a real agent, an exit code and one line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from agents import Agent, eventually
from stepped_clock import SteppedClock

SLOW = {"pydantic", "yaml", "fastapi", "http.client", "uvicorn", "jinja2", "gpumon.health.table", "gpumon.config.load"}
"""What the command has no time to import."""
IMPORTS = """
import sys
from gpumon.cli.main import main
code = main(sys.argv[1:])
print(*sorted(sys.modules))
sys.exit(code)
"""


class Ran(NamedTuple):
    code: int
    line: str
    errors: str


def check(*arguments: str, environment: Mapping[str, str] | None = None) -> Ran:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("GPUMON_", "CUDA_", "SLURM_"))}
    ran = subprocess.run(
        [sys.executable, "-m", "gpumon", "check", *arguments],
        env=environ | dict(environment or {}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return Ran(ran.returncode, ran.stdout.removesuffix("\n"), ran.stderr)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    agent = Agent(tmp_path, profile="h100x8")
    try:
        yield agent
    finally:
        agent.stop()


def test_an_agent_is_found_and_believed_and_its_end_is_no_ok(agent: Agent) -> None:
    """From a well node over a hung agent and a lost GPU to a killed agent and its successor: never a wrong ok."""
    agent.launch("--web.listen-address=:0")  # every address, a port that only the agent knows
    store = f"--store.path={agent.folder / 'gpumon.db'}"
    eventually(lambda: check(store) == (0, "GPU OK: 8 GPUs well.", ""))
    gpus = json.loads(check(store, "--json").line)["gpus"]
    with_uuid = {"CUDA_VISIBLE_DEVICES": gpus[3]["uuid"]}

    os.kill(agent.process.pid, signal.SIGSTOP)
    hung = check(store)
    os.kill(agent.process.pid, signal.SIGCONT)
    assert hung.code == 3
    assert "did not answer within 2 s" in hung.line

    agent.simulate({"gpus": {3: {"lost": True}}})
    lost = eventually(lambda: ran if (ran := check(store)).code == 2 else None)
    assert lost.line.startswith("GPU FAIL: GPU 3: It fell off the bus")
    assert "Do: reboot the node." in lost.line
    assert check(store, "--for-job", environment={"SLURM_JOB_GPUS": "0,1"}).line == "GPU OK: GPU 0, GPU 1 well."
    assert check(store, "--for-job", environment=with_uuid).code == 2
    assert check(store, "--gpu", "9").code == 3
    assert check(environment={"GPUMON_STORE__PATH": str(agent.folder / "gpumon.db")}).code == 2

    agent.kill()
    killed = check(store)
    assert killed.code == 2
    assert "It fell off the bus" in killed.line
    assert "no agent answers" in killed.line

    agent.simulate({})
    agent.launch("--web.listen-address=[::1]:0")
    back = eventually(lambda: ran if "no agent" not in (ran := check(store)).line else None)
    assert back.code == 2, "a GPU that came back by itself is not trusted yet"
    agent.stop()
    assert check(store).code == 2


def test_a_step_of_the_wall_clock_makes_no_agent_stuck(tmp_path: Path) -> None:
    """Asked at once after the step, before the agent has judged again."""
    clock = SteppedClock(tmp_path)
    agent = Agent(tmp_path, profile="t4x1", environment=clock.environment)
    store = f"--store.path={tmp_path / 'gpumon.db'}"
    try:
        agent.start()
        for step in (0, 86_400, -86_400):
            clock.step(step)
            eventually(lambda: check(store, environment=clock.environment).line.startswith("GPU OK"))
            clock.step(step + 3_600)
            assert check(store, environment=clock.environment) == (0, "GPU OK: 1 GPU well.", "")
    finally:
        agent.stop()


def test_the_agent_of_a_unit_is_found_without_being_named(tmp_path: Path) -> None:
    """In systemd's runtime directory it leaves word for every user, also where it cannot write beside its store."""
    runtime = {"RUNTIME_DIRECTORY": str(tmp_path / "run")}
    (tmp_path / "run").mkdir()
    (tmp_path / "gpumon.db.agent.json").mkdir()
    agent = Agent(tmp_path, profile="t4x1", environment=runtime)
    try:
        agent.start()
        eventually(lambda: check(environment=runtime) == (0, "GPU OK: 1 GPU well.", ""))
        assert "cannot leave word for gpumon check" in agent.log.read_text()
    finally:
        agent.stop()


def test_it_imports_nothing_slow(agent: Agent) -> None:
    """With an agent, and without one that has left word: that is what keeps it under a tenth of a second."""
    agent.start()
    command = [sys.executable, "-c", IMPORTS, "check", f"--store.path={agent.folder / 'gpumon.db'}"]
    for code in (0, 3):
        eventually(lambda code=code: subprocess.run(command, check=False, capture_output=True).returncode == code)  # type: ignore[misc]
        told = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60).stdout.splitlines()
        assert not SLOW & set(told[-1].split())
        if code == 0:
            agent.stop()


def test_mistakes_in_its_arguments_are_no_verdict(tmp_path: Path) -> None:
    """Argparse would exit 2, which means fail; a misspelt check would be ignored in vain."""
    store = f"--store.path={tmp_path / 'none.db'}"
    assert check("--no-such-flag").code == 3
    assert check("--gpu").code == 3
    misspelt = check(store, "--ignore", "gpu_losst")
    assert misspelt.code == 3
    assert "--ignore gpu_losst: there is no such check; there are: " in misspelt.line
    unnamed = check(store, "--for-job")
    assert unnamed.code == 3
    assert "CUDA_VISIBLE_DEVICES" in unnamed.line


@pytest.mark.parametrize("sink", ["ascii", "full"])
def test_an_answer_that_cannot_be_written_keeps_its_exit_code(tmp_path: Path, sink: str) -> None:
    """Python would exit 1, a warning: letters that the locale has not are escaped, a full disk loses the line alone."""
    command = [sys.executable, "-m", "gpumon", "check", f"--store.path={tmp_path / 'größe.db'}"]
    with Path("/dev/full").open("wb") as full:
        ran = subprocess.run(
            command,
            env={**os.environ, "PYTHONIOENCODING": "ascii", "GPUMON_WEB__LISTEN_ADDRESS": "127.0.0.1:9"},
            stdout=full if sink == "full" else subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert (ran.returncode, ran.stderr) == (3, b"")
    assert sink == "full" or b"gr\\xf6" in ran.stdout


def test_a_bad_configuration_is_no_verdict(tmp_path: Path) -> None:
    """Where no agent has left word the configuration is read; what is wrong with it is told, on one line."""
    bad = tmp_path / "gpumon.yml"
    bad.write_text("web: {listen_address: nowhere}\n")
    ran = check(f"--config.file={bad}")
    assert ran.code == 3
    assert f"{bad}:1: web.listen_address" in ran.line
    assert "\n" not in ran.line
