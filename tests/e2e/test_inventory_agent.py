"""The agent reports a missing GPU or port over restarts until it returns or an operator accepts its absence."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from agents import AgentProcess, eventually

from gpumon.store import records

pytestmark = pytest.mark.slow

GONE = {"idle": True, "gpus": {3: {"absent": True}}}


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    """Yield an agent that knows eight GPUs, was killed, and restarted with seven."""
    one = AgentProcess(tmp_path)
    one.simulate({"idle": True})
    one.start()
    eventually(lambda: all(gpu["last_seen"] for gpu in one.get("/api/v1/inventory")["gpus"]))
    eventually(lambda: has_stored(one, "gpus"))
    one.kill()
    one.simulate(GONE)
    one.start()
    yield one
    one.stop()


def has_stored(agent: AgentProcess, what: str) -> bool:
    """Return whether the store has all eight GPUs or ports."""
    with tempfile.TemporaryDirectory() as folder:
        for file in agent.folder.glob("gpumon.db*"):
            if file.name in {"gpumon.db", "gpumon.db-wal"}:
                shutil.copy(file, folder)
        copy = sqlite3.connect(Path(folder) / "gpumon.db")
        with closing(copy) as connection, suppress(sqlite3.DatabaseError):  # copied during a write
            return len({"gpus": records.read_gpus, "ports": records.read_ports}[what](connection)) == 8
    return False


def missing(agent: AgentProcess) -> list[dict[str, Any]]:
    return [gpu for gpu in agent.get("/api/v1/inventory")["gpus"] if gpu["state"] == "missing"]


def test_a_gpu_is_missing_until_its_absence_is_accepted(agent: AgentProcess) -> None:
    """The GPU has up 0 with its uuid, index and serial, and the node is unhealthy until an operator accepts it."""
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


def of_ports(agent: AgentProcess) -> dict[str, str]:
    """Return the state of each port that is not up."""
    inventory = agent.get("/api/v1/inventory")["ports"]
    assert len(inventory) >= 7
    return {port["device"]: port["state"] for port in inventory if port["state"] != "up"}


def test_ports_are_missing_after_a_reboot_until_their_absence_is_accepted(tmp_path: Path) -> None:
    """A port that is down and one whose card is gone are reported; a port that was never connected is not."""
    one = AgentProcess(tmp_path, environment={"GPUMON_BOOT_ID": "boot-1"})
    one.simulate({"idle": True, "ports": {"mlx5_7": SILENT}})
    one.start()
    eventually(lambda: of_ports(one) == {"mlx5_7": "unwired"})
    eventually(lambda: has_stored(one, "ports"))
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
