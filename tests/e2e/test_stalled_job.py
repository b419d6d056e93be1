"""Two real gloo jobs under a real slurmd, beside a simulated node: owners, a stall, and the rank that causes it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Job:
    """A job of two ranks on two GPUs, and the port at which they meet."""

    id: str
    port: int

    @property
    def name(self) -> str:
        return f"slurm/{self.id}"

    def ranks(self) -> list[LocalRank]:
        """Return the ranks that have joined the job, in their order."""
        own = (each for each in find_ranks()[0] if f"127.0.0.1:{self.port} of " in each.job)
        return sorted(own, key=lambda each: each.rank)


class Site:
    """An agent on a node with simulated GPUs, and a Slurm whose prolog gives 0 and 1 to job 1, 2 and 3 to job 2."""

    def __init__(self, folder: Path) -> None:
        self.agent = AgentProcess(folder, profile="h100x8")
        self._settings, mapping = folder / "gpumon.yml", folder / "mapping"
        settings = {
            "probe": {"enabled": False},
            "jobs": {"mapping_directory": str(mapping)},
            "health": {"thresholds": {"min_moving_seconds": 1, "min_stall_seconds": 30}},
        }
        self._settings.write_text(json.dumps(settings))
        for name, action in (("prolog", f"begin --store.path={folder / 'gpumon.db'}"), ("epilog", "end")):
            path = folder / name
            path.write_text(
                f"#!/bin/sh\nexport PYTHONPATH={shlex.quote(os.pathsep.join(filter(None, sys.path)))}\n"
                "export SLURM_JOB_GPUS=$((SLURM_JOB_ID * 2 - 2)),$((SLURM_JOB_ID * 2 - 1))\n"
                f"exec {sys.executable} -m gpumon mapping {action} --directory={mapping}\n"
            )
            path.chmod(0o755)
        self.jobs: list[Job] = []
        self.slurm = SlurmCluster(Path("/bin/true"), nodes=2, hooks=folder)

    def start(self) -> None:
        self.agent.simulate({"idle": True})
        self.agent.start(f"--config.file={self._settings}")
        # The prolog reads the health file, which has the GPUs after the first evaluation of the checks.
        eventually(lambda: json.loads((self.agent.folder / "gpumon.db.health.json").read_text())["level"] == "ok")
        self.slurm.start()

    def stop(self) -> None:
        for job in self.jobs:  # a slurmd that ends leaves the processes of its jobs behind
            for rank in job.ranks():
                os.kill(rank.pid, signal.SIGKILL)
            self.slurm.run("scancel", job.id)
        eventually(lambda: not self.slurm.run("squeue", "--noheader"))
        self.slurm.stop()
        self.agent.stop()

    def submit(self, fault: str) -> Job:
        """Start a job of two ranks, of which rank 1 has the fault after a few steps."""
        port = free_port()
        names = {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        pairs = " ".join(f"{name}={value}" for name, value in names.items())
        rank = f"env RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID {pairs} {sys.executable} {RANK} {fault} 1 2"
        task = f"srun --ntasks=2 sh -c {shlex.quote(f'exec {rank}')}"
        batch = ("sbatch", "--parsable", "--ntasks=2", "--output=job-%j.log", f"--wrap={task}")
        self.jobs.append(Job(self.slurm.run(*batch).strip(), port))
        return self.jobs[-1]

    def load(self, ranks: list[LocalRank], *phases: str, first: int = 0) -> None:
        """Put each rank on its GPU, from GPU `first` on, which does what the phase states."""
        each_gpu = enumerate(zip(ranks, phases, strict=True), first)
        jobs = [
            {"gpus": [gpu], "pids": [rank.pid], "load": 0.9, "phases": [{"do": phase, "seconds": 3600}]}
            for gpu, (rank, phase) in each_gpu
        ]
        self.agent.simulate({"jobs": jobs})

    def owners(self) -> dict[str, list[int]]:
        return {job["id"]: job["gpus"] for job in self.agent.get("/api/v1/jobs")["jobs"]}

    def motions(self) -> list[str]:
        return [each["motion"] for job in self.agent.get("/api/v1/jobs")["jobs"] for each in job["allocations"]]


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
    """The page has both owners, one verdict is on the job that hangs, and `gpumon explain` names its rank and line."""
    assert find_py_spy() is not None, "the requirements of the tests have py-spy, which reads the line of code"
    stalled, healthy = site.submit("stopped"), site.submit("none")
    eventually(lambda: site.owners() == {stalled.name: [0, 1], healthy.name: [2, 3]})
    page = site.agent.ask("/")[1].decode()
    assert (stalled.name in page, healthy.name in page) == (True, True)
    eventually(lambda: [len(job.ranks()) for job in site.jobs] == [2, 2], within=2 * PATIENCE)
    ranks = [*stalled.ranks(), *healthy.ranks()]
    site.load(ranks, "work", "work", "work", "work")
    eventually(lambda: site.motions() == ["moving", "moving", "moving", "moving"])
    os.kill(ranks[1].pid, signal.SIGSTOP)
    site.load(ranks, "spin", "idle", "work", "work")
    (verdict,) = eventually(lambda: site.agent.get("/api/v1/health")["verdicts"], within=3 * PATIENCE)
    assert (verdict["check"], verdict["device"], verdict["gpu"]) == ("job_stalled", f"job/{stalled.name}", None)
    assert verdict["reason"].endswith("GPU 0: busy without work. GPU 1: idle, its process is stopped (state T).")
    firing = [each for each in site.agent.get("/api/v1/alerts")["alerts"] if each["state"] == "firing"]
    assert [(each["rule"], each["page"]) for each in firing] == [("JobStalled", "day")]
    assert site.motions() == ["still", "idle", "moving", "moving"]
    command = [sys.executable, "-m", "gpumon", "explain", stalled.name]
    explained = subprocess.run(command, capture_output=True, text=True, check=True, timeout=150).stdout
    assert "rank 1" in explained.splitlines()[0]
    assert "state T" in explained
    assert f"rank.py:{LINE}" in explained
    os.kill(ranks[1].pid, signal.SIGKILL)
    site.slurm.run("scancel", stalled.id)
    site.load(ranks[2:], "work", "work", first=2)
    eventually(lambda: site.agent.get("/api/v1/health")["verdicts"] == [])
    eventually(lambda: site.owners() == {healthy.name: [2, 3]})
