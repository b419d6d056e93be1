"""Owners of GPUs in a running agent: from a prolog's files and real processes to the page, and who may read names."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from agents import AgentProcess, eventually

pytestmark = pytest.mark.slow

USER, ACCOUNT = "mallory", "secret-account"
PUBLIC = ("/", "/metrics", "/metrics/dcgm", "/api/v1/report", "/api/v1/jobs", "/api/v1/allocations", "/api/v1/events")


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    """Run an agent beside a kubelet that accepts connections and never answers."""
    agent = AgentProcess(tmp_path, profile="h100pciex2")
    kubelet = tmp_path / "kubelet.sock"
    settings = {
        "probe": {"enabled": False},
        "store": {"path": str(tmp_path / "gpumon.db")},
        "jobs": {"mapping_directory": str(tmp_path / "mapping"), "kubelet_socket": str(kubelet)},
        "metrics": {"dcgm_owner_labels": True},
    }
    (tmp_path / "gpumon.yml").write_text(json.dumps(settings))
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(kubelet))
        silent.listen()
        agent.simulate({"idle": True})
        agent.start(f"--config.file={tmp_path / 'gpumon.yml'}")
        yield agent
        agent.stop()


def mapping(agent: AgentProcess, action: str) -> None:
    """Run the command of the prolog or epilog for job 4711 on GPU 1."""
    names = {"SLURM_JOB_ID": "4711", "SLURM_JOB_GPUS": "1", "SLURM_JOB_USER": USER, "SLURM_JOB_ACCOUNT": ACCOUNT}
    store = [f"--store.path={agent.folder / 'gpumon.db'}"] if action == "begin" else []
    command = [sys.executable, "-m", "gpumon", "mapping", action, f"--directory={agent.folder / 'mapping'}", *store]
    # The health file has the GPUs after the first evaluation of the checks.
    environment = {**os.environ, **names}
    eventually(lambda: not subprocess.run(command, env=environment, capture_output=True, check=False).returncode)


def jobs(agent: AgentProcess) -> list[tuple[str, list[int]]]:
    return [(job["id"], job["gpus"]) for job in agent.get("/api/v1/jobs")["jobs"]]


def test_only_authorized_clients_read_the_user_of_a_job(agent: AgentProcess, tmp_path: Path) -> None:
    """A job of the prolog has its owner on all pages; no page, log or bundle has its user, but `gpumon jobs` does."""
    mapping(agent, "begin")
    eventually(lambda: jobs(agent) == [("slurm/4711", [1])])
    bundle = tmp_path / "bundle.tar.gz"
    command = [sys.executable, "-m", "gpumon", "doctor", f"--config.file={tmp_path / 'gpumon.yml'}"]
    subprocess.run([*command, f"--bundle={bundle}"], capture_output=True, check=False, timeout=150)
    texts = {path: agent.ask(path)[1].decode() for path in PUBLIC} | {"log": agent.log.read_text()}
    with tarfile.open(bundle) as archive:
        files = {member.name.rpartition("/")[2]: archive.extractfile(member) for member in archive}
        texts |= {name: file.read().decode() for name, file in files.items() if file is not None}
    assert "slurm/4711" in texts["report.json"]
    assert [name for name, text in texts.items() if USER in text or ACCOUNT in text] == []
    assert 'hpc_job="4711"' in texts["/metrics/dcgm"]
    shown = agent.command("jobs").stdout
    assert (USER in shown, ACCOUNT in shown) == (True, True)
    mapping(agent, "end")
    eventually(lambda: jobs(agent) == [])
    (stored,) = agent.get("/api/v1/allocations")["allocations"]
    assert (stored["job"], stored["ended"]) == ("slurm/4711", True)


def test_a_process_of_this_host_is_an_owner(agent: AgentProcess) -> None:
    """The scenario puts a real process on GPU 0; the agent finds its owner, and that it has ended."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        agent.simulate({"jobs": [{"gpus": [0], "load": 0.5, "pids": [process.pid]}]})
        (found,) = eventually(lambda: jobs(agent))
        assert found[1] == [0]
    agent.simulate({"idle": True})
    eventually(lambda: jobs(agent) == [])


def test_an_allocation_continues_after_a_restart(agent: AgentProcess) -> None:
    """The next agent continues it with the time at which it began, which no source reports for a process."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        agent.simulate({"jobs": [{"gpus": [0], "load": 0.5, "pids": [process.pid]}]})
        [before] = eventually(lambda: agent.get("/api/v1/jobs")["jobs"])
        agent.stop()
        agent.start(f"--config.file={agent.folder / 'gpumon.yml'}")
        [after] = eventually(lambda: agent.get("/api/v1/jobs")["jobs"])
        assert after["since"] == before["since"]
