"""The running agent and the links of its node: ports and services that fail, a child that hangs, one that is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from agents import Agent, Metrics, eventually

pytestmark = pytest.mark.slow


PORT_UP, RECEIVED = "gpumon_infiniband_port_up", "gpumon_infiniband_receive_bytes_total"
CALM = {"busy": True}


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    one = Agent(tmp_path)
    one.simulate(CALM)
    one.start()
    eventually(lambda: len(up(one.metrics())) == 8)
    yield one
    one.stop()


def up(metrics: Metrics) -> dict[str, float]:
    """By device."""
    return {dict(labels)["device"]: value for (name, labels), value in metrics.values.items() if name == PORT_UP}


def test_links_that_fail_show_everywhere_hide_nothing_and_come_back(agent: Agent) -> None:
    """A port down, a device that hangs, a stopped fabric manager, all NVLinks of a GPU down: metrics, API and log."""
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
    assert [one["subject"] for one in node["notices"]] == ["links"]
    assert node["notices"][0]["message"].startswith("mlx5_5 is quarantined: reading class/infiniband/mlx5_5/")

    agent.simulate(CALM)
    (child,) = agent.children("gpumon.collectors.links")
    os.kill(child, signal.SIGKILL)
    eventually(lambda: up(agent.metrics()).get("mlx5_3") == 1)
    eventually(lambda: agent.metrics().value("gpumon_fabric_manager_up") == 1)
    assert (agent.metrics().value(RECEIVED, device="mlx5_0") or 0) >= received
    log = agent.log.read_text(encoding="utf-8")
    assert log.count('msg="the port is down" device=mlx5_3') == 1
    assert log.count('msg="the port is up again" device=mlx5_3') == 1
    assert log.count('msg="NVLinks are down" gpu=0') == 1
