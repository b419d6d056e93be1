"""The real agent misses a GPU or a port over a restart, until it is back, or a person accepts that it is gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, eventually

from gpumon.store import gpus, ports
from gpumon.store.store import Store

pytestmark = pytest.mark.slow

GONE = {"idle": True, "gpus": {3: {"absent": True}}}


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    """One that knows eight GPUs, was killed, and starts again with seven."""
    one = Agent(tmp_path)
    one.simulate({"idle": True})
    one.start()
    eventually(lambda: all(gpu["last_seen"] for gpu in one.get("/api/v1/inventory")["gpus"]))
    eventually(lambda: stored(one, "gpus"))
    one.kill()
    one.simulate(GONE)
    one.start()
    yield one
    one.stop()


def stored(agent: Agent, what: str) -> bool:
    """Return whether the store has all eight of them."""
    with Store.open_copy(agent.folder / "gpumon.db") as store, store.reading() as connection:
        return len({"gpus": gpus.read, "ports": ports.read}[what](connection)) == 8


def missing(agent: Agent) -> list[dict[str, Any]]:
    return [gpu for gpu in agent.get("/api/v1/inventory")["gpus"] if gpu["state"] == "missing"]


def test_a_gpu_that_does_not_come_back_is_missing_until_it_is_accepted_as_gone(agent: Agent) -> None:
    """Up 0 with its uuid, its index and its serial; the node is not well until somebody accepts it."""
    (gone,) = eventually(lambda: missing(agent))
    page = agent.metrics()
    assert page.value("gpumon_gpu_up", gpu="3", uuid=gone["uuid"]) == 0
    assert page.value("gpumon_gpu_fault", gpu="3", fault="missing") == 1
    assert page.value("gpumon_gpus_expected") == 8
    assert page.value("gpumon_gpus_visible") == 7
    assert gone["serial"]
    assert gone["detail"].endswith("No longer on the PCI bus.")
    assert (page.value("gpumon_node_health") or 0) > 0

    status, after = agent.post("/api/v1/inventory/accept")
    assert status == 200
    assert (after["gpus_expected"], after["basis"], len(after["gpus"])) == (7, "accepted", 7)
    eventually(lambda: agent.metrics().value("gpumon_node_health") == 0)
    assert agent.metrics().value("gpumon_gpu_up", gpu="3") is None

    agent.stop()
    agent.start()
    eventually(lambda: agent.get("/api/v1/inventory")["former_gpus"])
    assert agent.metrics().value("gpumon_gpus_expected") == 7
    assert not missing(agent)

    agent.simulate({"idle": True})
    eventually(lambda: agent.metrics().value("gpumon_gpu_up", gpu="3") == 1)
    eventually(lambda: agent.metrics().value("gpumon_gpus_expected") == 8)


SILENT = {"state": "down", "counters": {"port_rcv_data": 0, "port_xmit_data": 0}}
RAILS = {"idle": True, "ports": {"mlx5_2": {"absent": True}, "mlx5_5": SILENT, "mlx5_7": SILENT}}


def of_ports(agent: Agent) -> dict[str, str]:
    """States of those that are not up."""
    known = agent.get("/api/v1/inventory")["ports"]
    assert len(known) >= 7
    return {one["device"]: one["state"] for one in known if one["state"] != "up"}


def test_ports_that_do_not_come_back_from_a_reboot_are_missed_until_they_are_accepted(tmp_path: Path) -> None:
    """One is down, one is gone with its card; the one that was never wired is not missed."""
    one = Agent(tmp_path, environment={"GPUMON_BOOT_ID": "boot-1"})
    one.simulate({"idle": True, "ports": {"mlx5_7": SILENT}})
    one.start()
    eventually(lambda: of_ports(one) == {"mlx5_7": "unwired"})
    eventually(lambda: stored(one, "ports"))
    one.kill()
    one.environment["GPUMON_BOOT_ID"] = "boot-2"
    one.simulate(RAILS)
    one.start()
    eventually(lambda: of_ports(one) == {"mlx5_2": "missing", "mlx5_5": "down", "mlx5_7": "unwired"})

    status, after = one.post("/api/v1/inventory/accept")
    assert status == 200
    assert "mlx5_2" not in [port["device"] for port in after["ports"]]
    one.kill()
    one.start()
    eventually(lambda: of_ports(one) == {"mlx5_5": "accepted", "mlx5_7": "unwired"})
    one.simulate({"idle": True})
    eventually(lambda: of_ports(one) == {})
    one.stop()
