"""OpenCost's query for the use of GPUs, answered by a real Prometheus that scrapes /metrics/dcgm."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from agents import AgentProcess, eventually, free_port
from dcgm_queries import FILE
from servers import prometheus, query, write_yaml

sys.path.append(str(Path(__file__).parents[1]))

from kubelet import answer, container, pod, serving

pytestmark = pytest.mark.slow


def test_opencost_reads_the_use_of_each_container(tmp_path: Path) -> None:
    """The GPU of a container has its labels and the share of time in which it ran; a free GPU is in no result."""
    [row] = [line for line in FILE.read_text(encoding="utf-8").splitlines() if line.startswith("opencost/")]
    asked = row.split("\t")[2]
    agent, port = AgentProcess(tmp_path, profile="h100pciex2"), free_port()
    settings = {
        "probe": {"enabled": False},
        "jobs": {"kubelet_socket": str(tmp_path / "kubelet.sock")},
        "metrics": {"dcgm_owner_labels": True},
    }
    (tmp_path / "gpumon.yml").write_text(json.dumps(settings))
    agent.simulate({"busy": True})
    agent.start(f"--config.file={tmp_path / 'gpumon.yml'}")
    try:
        uuid = eventually(lambda: agent.get("/api/v1/report")["gpus"][0]["uuid"])
        target = {"static_configs": [{"targets": [f"127.0.0.1:{agent.port}"]}]}
        job = {"job_name": "dcgm", "metrics_path": "/metrics/dcgm", "scrape_interval": "1s", **target}
        write_yaml(tmp_path / "prometheus.yml", {"scrape_configs": [job]})
        held = answer(pod("train-0", container(uuid, name="main"), namespace="ml"))
        with serving(tmp_path / "kubelet.sock", held), prometheus(tmp_path, port):
            [result] = eventually(lambda: query(port, asked))
    finally:
        agent.stop()
    assert result["metric"] == {"namespace": "ml", "pod": "train-0", "container": "main"}
    assert 0 < float(result["value"][1]) <= 1
