"""A hold from a scheduler's prolog to its epilog: with a run in progress, after kill -9, and without an agent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from agents import Agent, alive, eventually

pytestmark = pytest.mark.slow

RANKS = "gpumon/probe/worker"


def gpumon(agent: Agent, *arguments: str) -> subprocess.CompletedProcess[str]:
    flags = [f"--store.path={agent.folder / 'gpumon.db'}"]
    flags += [f"--store.path={agent.folder / 'gpumon.db'}"]
    command = [sys.executable, "-m", "gpumon", *arguments, *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=90)


def test_a_hold_outlives_its_agent_and_needs_none(tmp_path: Path) -> None:
    """No rank is left when the command returns, and no probe runs until the hold ends, over kills and restarts."""
    agent = Agent(tmp_path, environment={"GPUMON_PROBE__INITIAL_DELAY_SECONDS": "3600"})
    agent.simulate({"idle": True})
    try:
        agent.start()
        assert agent.post("/probe/allreduce")[0] == 202
        ranks = eventually(lambda: agent.children(RANKS))
        began = gpumon(agent, "probe", "hold", "--ttl", "2h", "--owner", "4711", "--reason", "prolog")
        assert not alive(ranks)
        assert (began.returncode, "No process of a probe is on a GPU." in began.stdout) == (0, True), began
        assert eventually(lambda: agent.get("/probe/allreduce")["last"])["reason"] == "held"
        assert agent.post("/probe/allreduce")[1]["reason"] == "held"
        assert "held by command for 4711 (prolog)" in gpumon(agent, "status").stdout

        agent.kill()
        alone = gpumon(agent, "probe", "hold", "--owner", "4712")
        assert (alone.returncode, "No agent runs" in alone.stdout) == (0, True), alone
        assert "for 4711 (prolog); by command for 4712" in alone.stdout
        agent.start()
        assert agent.post("/probe/allreduce")[1]["reason"] == "held"

        assert gpumon(agent, "probe", "unhold", "--owner", "4711").returncode == 0
        agent.stop()
        assert "No hold is in force." in gpumon(agent, "probe", "unhold", "--owner", "4712").stdout
        agent.start()
        assert agent.get("/api/v1/probes/hold") == {"hold": None}
        assert agent.post("/probe/allreduce")[0] == 202
        log = agent.log.read_text(encoding="utf-8")
        assert log.count("hold started: no probe runs") == 1
        assert log.count("hold continues: no probe runs") == 2
    finally:
        agent.stop()


def test_a_hold_without_an_agent_and_a_store_creates_no_store(tmp_path: Path) -> None:
    """The prolog succeeds. A store created by root would block an agent that runs as another user."""
    agent = Agent(tmp_path)
    began = gpumon(agent, "probe", "hold")
    assert (began.returncode, "No agent runs, so no process of gpumon is on a GPU." in began.stdout) == (0, True), began
    assert "there is no store" in began.stdout
    assert not (tmp_path / "gpumon.db").exists()
