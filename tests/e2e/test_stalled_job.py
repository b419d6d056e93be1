"""A real gloo job under a real slurmd, beside a simulated node: its owner, its stall, and the rank that causes it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from agents import PATIENCE, AgentProcess, eventually, free_port
from slurm_cluster import SlurmCluster

from gpumon.cli.hang.processes import LocalRank, find_ranks
from gpumon.cli.hang.stacks import find_py_spy

pytestmark = pytest.mark.slow
pytest.importorskip("torch")

RANK = Path(__file__).parents[2] / "benchmarks" / "explain" / "rank.py"
LINE = next(n for n, text in enumerate(RANK.read_text().splitlines(), 1) if "time.sleep(HOUR)" in text)


class Site:
    """An agent on a node with two simulated GPUs, and a Slurm whose jobs get both of them."""

    def __init__(self, folder: Path) -> None:
        self.agent = AgentProcess(folder, profile="h100pciex2")
        self._settings, mapping = folder / "gpumon.yml", folder / "mapping"
        settings = {
            "probe": {"enabled": False},
            "jobs": {"mapping_directory": str(mapping)},
            "health": {"thresholds": {"min_moving_seconds": 1, "min_stall_seconds": 30}},
        }
        self._settings.write_text(json.dumps(settings))
        for name, action in (("prolog", f"begin --store.path={folder / 'gpumon.db'}"), ("epilog", "end")):
            path = folder / name
            environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "SLURM_JOB_GPUS": "0,1"}
            exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())
            path.write_text(
                f"#!/bin/sh\n{exports}exec {sys.executable} -m gpumon mapping {action} --directory={mapping}\n"
            )
            path.chmod(0o755)
        self.port = free_port()
        self.slurm = SlurmCluster(Path("/bin/true"), nodes=2, hooks=folder)

    def start(self) -> None:
        self.agent.simulate({"idle": True})
        self.agent.start(f"--config.file={self._settings}")
        # The prolog reads the health file, which has the GPUs after the first evaluation of the checks.
        eventually(lambda: json.loads((self.agent.folder / "gpumon.db.health.json").read_text())["level"] == "ok")
        self.slurm.start()

    def stop(self) -> None:
        for rank in self.ranks():  # slurmd leaves the processes of its jobs behind
            os.kill(rank.pid, signal.SIGKILL)
        self.slurm.stop()
        self.agent.stop()

    def submit(self) -> str:
        """Start a job of two ranks, of which rank 1 no longer takes part in collectives after a few steps."""
        names = {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": self.port}
        pairs = " ".join(f"{name}={value}" for name, value in names.items())
        rank = f"env RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID {pairs} {sys.executable} {RANK} stopped 1 2"
        task = f"srun --ntasks=2 sh -c {shlex.quote(f'exec {rank}')}"
        return self.slurm.run("sbatch", "--parsable", "--ntasks=2", "--output=job.log", f"--wrap={task}").strip()

    def ranks(self) -> list[LocalRank]:
        """Return the ranks that have joined the job, in their order."""
        own = (each for each in find_ranks()[0] if each.job.endswith(f"127.0.0.1:{self.port}"))
        return sorted(own, key=lambda each: each.rank)

    def load(self, ranks: list[LocalRank], *phases: str) -> None:
        """Put each rank on its GPU, which does what the phase states."""
        each_gpu = enumerate(zip(ranks, phases, strict=True))
        jobs = [
            {"gpus": [gpu], "pids": [rank.pid], "load": 0.9, "phases": [{"do": phase, "seconds": 3600}]}
            for gpu, (rank, phase) in each_gpu
        ]
        self.agent.simulate({"jobs": jobs})

    def motions(self) -> list[str]:
        (job,) = self.agent.get("/api/v1/jobs")["jobs"]
        return [each["motion"] for each in job["allocations"]]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    try:
        site.start()
        yield site
    finally:
        site.stop()


@pytest.mark.timeout(600)
def test_a_stopped_rank_is_one_alert_and_explained(site: Site) -> None:
    """The page has the owner, one verdict is on the job, and `gpumon explain` names the rank with its line of code."""
    job = site.submit()
    eventually(lambda: f"slurm/{job}" in site.agent.ask("/")[1].decode())
    eventually(lambda: len(site.ranks()) == 2, within=2 * PATIENCE)
    ranks = site.ranks()
    site.load(ranks, "work", "work")
    eventually(lambda: site.motions() == ["moving", "moving"])
    os.kill(ranks[1].pid, signal.SIGSTOP)
    site.load(ranks, "spin", "idle")
    (verdict,) = eventually(lambda: site.agent.get("/api/v1/health")["verdicts"], within=3 * PATIENCE)
    assert (verdict["check"], verdict["device"], verdict["gpu"]) == ("job_stalled", f"job/slurm/{job}", None)
    assert verdict["reason"].endswith("GPU 0: busy without work. GPU 1: idle, its process is stopped (state T).")
    firing = [each for each in site.agent.get("/api/v1/alerts")["alerts"] if each["state"] == "firing"]
    assert [(each["rule"], each["page"]) for each in firing] == [("JobStalled", "day")]
    command = [sys.executable, "-m", "gpumon", "explain", f"slurm/{job}"]
    explained = subprocess.run(command, capture_output=True, text=True, check=True, timeout=150).stdout
    assert "rank 1" in explained.splitlines()[0]
    assert "state T" in explained
    if find_py_spy() is not None:
        assert f"rank.py:{LINE}" in explained
    os.kill(ranks[1].pid, signal.SIGKILL)
    site.slurm.run("scancel", job)
    site.agent.simulate({"idle": True})
    eventually(lambda: site.agent.get("/api/v1/health")["verdicts"] == [])
