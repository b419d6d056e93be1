"""Workloads of simulated GPUs: the default jobs, no job (idle), one endless job (busy), or the jobs of a scenario."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import cycle, pairwise

from gpumon_sim.physics import Job, LoadPhase, Workload

FREE_AT_FIRST = 40.0
"""Seconds without a process at the start of the default workload, so that the node is idle for the first probe."""


WORK, IDLE_PHASE, SPIN, GONE = "work", "idle", "spin", "gone"
"""What a job does in a phase. work: kernels with the job's load. idle: no kernel. spin: a kernel that waits for a peer.
gone: its processes have ended.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPhase:
    """An entry of a job's `phases`: what the job does for this time on each of its GPUs."""

    do: str = WORK
    seconds: float = float("inf")
    load: float | None = None
    """Load while it works, from 0 to 1; None for that of the job."""
    process: str = "R"
    """State of each process in /proc/PID/stat."""
    cpu: float = 1.0
    """CPU time per second that each process uses."""
    read_bytes: float = 0.0
    """Bytes per second that its cgroup reads from a disk."""
    dips: bool = False
    """True if its power falls and rises with each step while it works."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioJob:
    """An entry of a scenario's `jobs`: a job on some GPUs. `start` and `end` are seconds since the simulation began.

    `load` is from 0 to 1, `memory` the share of the GPU's memory. The last of the phases lasts until the end, unless
    they are repeated.
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
    phases: tuple[JobPhase, ...] = (JobPhase(),)
    repeat: bool = False
    """True if the phases are repeated until the end, which is then finite."""

    def pid_on(self, gpu: int) -> int | None:
        place = gpu if self.gpus is None else self.gpus.index(gpu)
        return self.pids[place % len(self.pids)] if self.pids else None

    def phase_at(self, time: float) -> JobPhase | None:
        """Return the phase at this time; None before the start and after the end of the job."""
        if not self.start <= time < self.end:
            return None
        _, into = self._divide(time)
        for phase in self.phases:
            if into < phase.seconds:
                return phase
            into -= phase.seconds
        return self.phases[-1]

    def total(self, rate: Callable[[JobPhase], float], time: float) -> float:
        """Return the integral, from the start of the job to this time, of a rate that is constant in each phase."""
        whole, into = self._divide(max(self.start, min(time, self.end)))
        sum_of_cycle = sum(rate(phase) * phase.seconds for phase in self.phases) if whole else 0.0
        total = whole * sum_of_cycle
        for phase in self.phases:
            seconds = into if phase is self.phases[-1] else min(into, phase.seconds)
            total += rate(phase) * seconds
            into -= seconds
        return total

    def edges(self) -> Iterator[float]:
        """Yield the times at which the job or a phase starts or ends, in order."""
        edge = self.start
        for phase in cycle(self.phases) if self.repeat else self.phases[:-1]:
            yield edge
            edge += phase.seconds
            if edge >= self.end:
                break
        else:
            yield edge
        yield self.end

    def _divide(self, time: float) -> tuple[float, float]:
        """Return how often all phases have passed at this time, and the seconds since the present cycle began."""
        seconds = time - self.start
        return divmod(seconds, sum(phase.seconds for phase in self.phases)) if self.repeat else (0.0, seconds)


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
    edges = sorted({0.0} | {edge for _, run in mine for edge in run.edges()})
    phases = []
    for start, end in pairwise(edges):
        middle = min((start + end) / 2, start + 1)
        there = [(number, run, phase) for number, run in mine if (phase := run.phase_at(middle)) and phase.do != GONE]
        room = min(1.0, 1.0 / max(sum(run.memory for _, run, _ in there), 1e-9))
        works = [(run.load if phase.load is None else phase.load, phase) for _, run, phase in there if phase.do == WORK]
        phases.append(
            LoadPhase(
                end - start,
                min(1.0, sum(load for load, _ in works)),
                tuple(Job(number, run.memory * room, run.pid_on(gpu)) for number, run, _ in there),
                spins=any(phase.do == SPIN for _, _, phase in there),
                dips=any(phase.dips for _, phase in works),
            )
        )
    return Workload(0.0, tuple(phases))
