"""Workloads of simulated GPUs: the default jobs, no job (idle), one endless job (busy), or the jobs of a scenario."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from gpumon_sim.physics import Job, LoadPhase, Workload

FREE_AT_FIRST = 40.0
"""Seconds without a process at the start of the default workload, so that the node is idle for the first probe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioJob:
    """An entry of a scenario's `jobs`: a job on some GPUs. `start` and `end` are seconds since the simulation began.

    `load` is from 0 to 1, `memory` the share of the GPU's memory.
    """

    start: float = 0.0
    end: float = float("inf")
    load: float = 0.95
    memory: float = 0.8
    gpus: tuple[int, ...] | None = None
    """Indexes of the GPUs; None for all GPUs."""
    cgroup: str | None = None
    """Cgroup of its processes, as in the last field of /proc/PID/cgroup; None for that of a Slurm job."""
    pids: tuple[int, ...] = ()
    """Processes of this host that stand for the processes of the job, one for each GPU in order; empty for none."""

    def pid_on(self, gpu: int) -> int | None:
        place = gpu if self.gpus is None else self.gpus.index(gpu)
        return self.pids[place % len(self.pids)] if self.pids else None


IDLE = Workload(lead=float("inf"))


@cache
def default_workload(seed: int) -> Workload:
    """Return the default workload: three jobs of about five minutes, with pauses of one to two minutes, repeatedly."""
    chance = random.Random(seed)  # noqa: S311 - reproducible, nothing to keep secret
    phases: list[LoadPhase] = []
    for number, level in enumerate((0.99, 0.85, 0.55)):
        phases += _training_phases(chance, number, level, chance.uniform(240, 330))
        phases.append(LoadPhase(chance.uniform(60, 120), 0.0))
    return Workload(FREE_AT_FIRST, tuple(phases), repeats=True)


@cache
def busy(seed: int) -> Workload:
    """Return the workload of a busy GPU: one job that never ends."""
    phases = _training_phases(random.Random(seed), 0, 0.99, 600)  # noqa: S311 - as above
    return Workload(0.0, tuple(phases), repeats=True, same_jobs=True)


def _training_phases(chance: random.Random, number: int, level: float, seconds: float) -> list[LoadPhase]:
    """Return the phases of a training job: loading the model, then steps under load with checkpoints in between.

    The job has this number, takes at least `seconds`, and has about `level` (0 to 1) as its load.
    """
    full = (Job(number, 0.86 * min(1.0, 0.3 + 0.7 * level)),)
    phases = [LoadPhase(6.0, 0.04, (Job(number, 0.2),))]
    while sum(phase.seconds for phase in phases) < seconds:
        phases.append(LoadPhase(chance.uniform(24, 40), level * chance.uniform(0.95, 1.0), full))
        phases.append(LoadPhase(chance.uniform(3, 6), level * chance.uniform(0.25, 0.4), full))
    return phases


def of_jobs(runs: Sequence[ScenarioJob], gpu: int) -> Workload:
    """Return one GPU's workload under a scenario's jobs. Load and memory of overlapping jobs add up, to at most 1."""
    mine = [(number, run) for number, run in enumerate(runs) if run.gpus is None or gpu in run.gpus]
    edges = sorted({0.0} | {edge for _, run in mine for edge in (run.start, run.end)})
    phases = []
    for start, end in pairwise(edges):
        now = [(number, run) for number, run in mine if run.start <= start < run.end]
        room = min(1.0, 1.0 / max(sum(run.memory for _, run in now), 1e-9))
        jobs = tuple(Job(number, run.memory * room, run.pid_on(gpu)) for number, run in now)
        phases.append(LoadPhase(end - start, min(1.0, sum(run.load for _, run in now)), jobs))
    return Workload(0.0, tuple(phases))
