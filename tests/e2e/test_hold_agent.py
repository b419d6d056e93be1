"""A hold from a scheduler's prolog to its epilog: with a run in progress, after kill -9, and without an agent."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from agents import AgentProcess, alive, eventually

pytestmark = pytest.mark.slow

RANKS = "gpumon/probe/worker"
WINDOW = ("--for", "2h", "--reason", "new fans")


def gpumon(agent: AgentProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    flags = [f"--socket={agent.folder / 'gpumon.db.sock'}"]
    command = [sys.executable, "-m", "gpumon", *arguments, *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=90)


def test_a_hold_outlives_its_agent(tmp_path: Path) -> None:
    """No rank is left when the command returns, and no probe runs until the hold ends, over kills and restarts."""
    agent = AgentProcess(tmp_path, environment={"GPUMON_PROBE__INITIAL_DELAY_SECONDS": "3600"})
    agent.simulate({"idle": True})
    try:
        agent.start()
        assert agent.post("/probe/allreduce")[0] == 202
        ranks = eventually(lambda: agent.children(RANKS))
        began = gpumon(agent, "probe", "hold", "--for", "2h", "--owner", "4711", "--reason", "prolog")
        assert not alive(ranks)
        assert (began.returncode, "No process of a probe is on a GPU." in began.stdout) == (0, True), began
        assert eventually(lambda: agent.get("/probe/allreduce")["last"])["reason"] == "held"
        assert agent.post("/probe/allreduce")[1]["reason"] == "held"
        assert "held by command for 4711 (prolog)" in gpumon(agent, "status").stdout

        agent.kill()
        agent.start()
        assert agent.post("/probe/allreduce")[1]["reason"] == "held"

        agent.stop()
        alone = gpumon(agent, "probe", "unhold", "--owner", "4711")
        assert (alone.returncode, "Nothing was changed" in alone.stderr) == (1, True), alone
        agent.start()
        assert agent.post("/probe/allreduce")[1]["reason"] == "held"
        assert gpumon(agent, "probe", "unhold", "--owner", "4711").returncode == 0
        assert agent.get("/api/v1/probes/hold")["windows"] == []
        assert agent.post("/probe/allreduce")[0] == 202
        log = agent.log.read_text(encoding="utf-8")
        assert log.count("hold started: no probe runs") == 1
        assert log.count("hold continues: no probe runs") == 2
    finally:
        agent.stop()


def test_a_job_that_begins_while_the_agent_starts_is_held(tmp_path: Path) -> None:
    """The command waits for an agent that restarts, because it must learn of the job."""
    agent = AgentProcess(tmp_path)
    with ThreadPoolExecutor() as pool:
        began = pool.submit(gpumon, agent, "probe", "hold", "--owner", "4711")
        try:
            agent.start()
            assert began.result().returncode == 0, began.result()
            assert agent.get("/api/v1/probes/hold")["windows"][0]["owner"] == "4711"
        finally:
            agent.stop()


@pytest.mark.parametrize("command", [["probe", "hold"], ["probe", "unhold"], ["maintenance", "start", *WINDOW]])
def test_a_command_without_an_agent_changes_nothing(tmp_path: Path, command: list[str]) -> None:
    """A command of root writes no file in the folder of the agent, which could be a link to any file."""
    agent = AgentProcess(tmp_path)
    before = sorted(tmp_path.iterdir())
    ran = gpumon(agent, *command)
    assert ran.returncode != 0
    assert "no agent answers" in ran.stderr
    assert sorted(tmp_path.iterdir()) == before
