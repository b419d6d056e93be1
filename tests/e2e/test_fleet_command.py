"""`gpumon fleet` with real agents, Prometheus and Alertmanager, and a live view of a real agent."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agents import AgentProcess, eventually
from alert_stack import AlertStack
from live_terminal import Terminal

pytestmark = pytest.mark.slow


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[dict[str, AgentProcess]]:
    """Run an agent that has lost GPU 1, and a healthy one."""
    running = {}
    for name, lost in (("broken", True), ("good", False)):
        (tmp_path / name).mkdir()
        running[name] = AgentProcess(tmp_path / name, profile="h100pciex2")
        running[name].simulate({"idle": True, "seed": 2 + lost, "gpus": {1: {"lost": lost}}})
        running[name].start()
    yield running
    for agent in running.values():
        agent.stop()


def fleet(*arguments: str) -> dict[str, Any]:
    """Return the JSON that the command prints."""
    command = [sys.executable, "-m", "gpumon", "fleet", "--json", *arguments]
    shown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    return dict(json.loads(shown.stdout))


def test_a_bad_node_is_listed_by_its_agent(agents: dict[str, AgentProcess], tmp_path: Path) -> None:
    """With reason, action and age; maintenance has an owner; an agent that is stopped does not answer."""
    addresses = {name: f"127.0.0.1:{agent.port}" for name, agent in agents.items()}
    inventory = tmp_path / "inventory"
    inventory.write_text("".join(f"{name} ansible_host={address}\n" for name, address in addresses.items()))

    def listed_problems() -> list[dict[str, Any]]:
        return list(fleet("--hosts", str(inventory))["problems"])

    eventually(lambda: [each["action"] for each in listed_problems()] == ["reboot"])
    [problem] = listed_problems()
    assert (problem["node"], problem["device"], problem["level"]) == ("broken", "GPU 1", "fail")
    assert problem["reason"].startswith("It fell off the bus")
    assert problem["since"] > 1.7e9
    assert (problem["owner"], problem["drained"]) == ("", None)
    agents["broken"].post("/api/v1/windows?kind=maintenance&for_seconds=300&reason=riser%20ordered")
    assert listed_problems()[0]["owner"].endswith(": riser ordered")
    agents["good"].stop()
    assert [(each["node"], each["level"]) for each in listed_problems()] == [("broken", "fail"), ("good", "no answer")]


def test_a_bad_node_is_listed_by_prometheus(agents: dict[str, AgentProcess], tmp_path: Path) -> None:
    """With the age of its alert; who silenced it is its owner; its verdict stays while its agent is away."""
    broken, good = (f"127.0.0.1:{agents[name].port}" for name in ("broken", "good"))
    stack = AlertStack(tmp_path, agents["broken"].port)
    stack.scrape(agents["broken"].port, agents["good"].port)

    def listed_problems() -> list[dict[str, Any]]:
        found = fleet("--prometheus", f"http://127.0.0.1:{stack.prometheus}")
        assert found["nodes"] == sorted([broken, good])
        return list(found["problems"])

    with stack.up():
        eventually(lambda: stack.notifications_of("GpuLost") == ["firing"])
        eventually(lambda: [each["action"] for each in listed_problems()] == ["reboot"])
        [problem] = listed_problems()
        assert (problem["node"], problem["device"], problem["level"]) == (broken, "GPU 1", "fail")
        assert problem["reason"].startswith("It fell off the bus")
        assert problem["since"] > 1.7e9
        assert problem["owner"] == ""
        amtool = ["amtool", f"--alertmanager.url=http://127.0.0.1:{stack.alertmanager}", "silence", "add"]
        subprocess.run([*amtool, "--author=kim", "--comment=riser ordered", "alertname=GpuLost"], check=True)
        eventually(lambda: listed_problems()[0]["owner"] == "kim: riser ordered")
        agents["broken"].kill()
        eventually(lambda: [each["level"] for each in listed_problems()] == ["fail", "no answer"])


def test_a_live_view_shows_bars(agents: dict[str, AgentProcess], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each problem, a bar for each reading on a wide terminal, and how to end."""
    monkeypatch.setenv("COLUMNS", "120")
    url = f"http://127.0.0.1:{agents['broken'].port}"
    live = Terminal(sys.executable, "-m", "gpumon", "status", "--watch", "100ms", "--url", url)
    live.wait_for("GPU 1: The GPU fell off the bus")
    assert "] 0 %" in live.shown
    assert "q: end" in live.shown
    assert live.press("q") == 0
