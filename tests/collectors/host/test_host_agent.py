"""The running agent and its links: failed ports and services, a hung child, a killed child."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from agents import AgentProcess, Metrics, eventually

pytestmark = pytest.mark.slow


PORT_UP, RECEIVED = "gpumon_infiniband_port_up", "gpumon_infiniband_receive_bytes_total"
CALM = {"busy": True}


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    running_agent = AgentProcess(tmp_path)
    running_agent.simulate(CALM)
    running_agent.start()
    eventually(lambda: len(up(running_agent.metrics())) == 8)
    yield running_agent
    running_agent.stop()


def up(metrics: Metrics) -> dict[str, float]:
    """Return the states of the ports by device."""
    return {dict(labels)["device"]: value for (name, labels), value in metrics.values.items() if name == PORT_UP}


def test_failed_links_are_reported_everywhere_and_recover(agent: AgentProcess) -> None:
    """A port down, a hung device, a stopped fabric manager, and all NVLinks of a GPU down: metrics, API and log."""
    assert agent.metrics().value("gpumon_fabric_manager_up") == 1
    received = eventually(lambda: agent.metrics().value(RECEIVED, device="mlx5_0"))
    ports = {"mlx5_3": {"state": "down", "counters": {"link_downed": 1}}, "mlx5_5": {"hang": True}}
    nvlinks = {0: {"nvlinks": {"*": {"state": "down"}}}}
    agent.simulate({**CALM, "ports": ports, "gpus": nvlinks, "services": {"fabric_manager": "stopped"}})

    others = dict.fromkeys((f"mlx5_{n}" for n in (0, 1, 2, 4, 6, 7)), 1.0)
    eventually(lambda: up(agent.metrics()) == {**others, "mlx5_3": 0.0})
    eventually(lambda: agent.metrics().value("gpumon_fabric_manager_up") == 0)
    eventually(lambda: agent.metrics().gpus("gpumon_gpu_nvlinks_active")["0"] == 0)
    eventually(lambda: agent.metrics().value("gpumon_infiniband_link_downs_total", device="mlx5_3") == 1)
    port = agent.get("/api/v1/ports")["ports"][3]
    assert (port["device"], port["port_up"], port["port_speed_bytes_per_second"]) == ("mlx5_3", 0, None)
    node = agent.get("/api/v1/node")
    assert (node["nvml_up"], node["fabric_manager_up"]) == (1, 0)
    assert [notice["subject"] for notice in node["notices"]] == ["links"]
    assert node["notices"][0]["message"].startswith("mlx5_5 is quarantined: reading class/infiniband/mlx5_5/")

    agent.simulate(CALM)
    (child,) = agent.children("gpumon.collectors.host")
    os.kill(child, signal.SIGKILL)
    eventually(lambda: up(agent.metrics()).get("mlx5_3") == 1)
    eventually(lambda: agent.metrics().value("gpumon_fabric_manager_up") == 1)
    assert (agent.metrics().value(RECEIVED, device="mlx5_0") or 0) >= received
    log = agent.log.read_text(encoding="utf-8")
    assert log.count('msg="the port is down" device=mlx5_3') == 1
    assert log.count('msg="the port is up again" device=mlx5_3') == 1
    assert log.count('msg="NVLinks are down" gpu=0') == 1
