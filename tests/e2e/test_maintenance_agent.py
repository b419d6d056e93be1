"""A maintenance window from the command to its end: alerts, kill -9 and restart."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from agents import AgentProcess, eventually

pytestmark = pytest.mark.slow


def gpumon(agent: AgentProcess, *arguments: str) -> str:
    """Run a command at the agent's socket."""
    flags = [f"--socket={agent.folder / 'gpumon.db.sock'}"]
    command = [sys.executable, "-m", "gpumon", *arguments, *flags]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=90).stdout


def firing(agent: AgentProcess) -> set[str]:
    return {each["rule"] for each in agent.get("/api/v1/alerts?state=firing")["alerts"]}


def verdicts(agent: AgentProcess) -> set[str]:
    return {each["check"] for each in agent.get("/api/v1/health")["verdicts"]}


def test_a_fault_during_maintenance_alerts_when_it_ends(tmp_path: Path) -> None:
    """Checks are evaluated during maintenance, and kill -9 does not end it."""
    agent = AgentProcess(tmp_path)
    agent.simulate({"idle": True})
    try:
        agent.start()
        assert "new power supply" in gpumon(
            agent, "maintenance", "start", "--for", "2h", "--reason", "new power supply"
        )
        agent.simulate({"idle": True, "gpus": {3: {"lost": True}}})
        eventually(lambda: "gpu_lost" in verdicts(agent))
        eventually(lambda: agent.metrics().value("gpumon_health_check", check="gpu_lost", gpu="3") == 3)
        transitions = agent.get("/api/v1/health")["transitions"]
        assert transitions
        assert all(transition["in_maintenance"] for transition in transitions)
        assert firing(agent) == set()
        assert agent.post("/probe/allreduce")[1]["reason"] == "maintenance"

        agent.kill()
        agent.start()
        eventually(lambda: "gpu_lost" in verdicts(agent))
        assert "new power supply" in gpumon(agent, "status").splitlines()[1]
        assert (agent.metrics().value("gpumon_maintenance_end_timestamp_seconds") or 0) > 1e9
        assert firing(agent) == set()

        assert gpumon(agent, "maintenance", "end") == "The node is not in maintenance.\n"
        assert agent.metrics().value("gpumon_maintenance_end_timestamp_seconds") == 0
        eventually(lambda: "GpuLost" in firing(agent))
        log = agent.log.read_text(encoding="utf-8")
        assert log.count("maintenance started: no alert pages") == 1
        assert log.count("maintenance continues: no alert pages") == 1
        assert log.count("maintenance ended") == 1
    finally:
        agent.stop()
