"""Ids of the processes of simulated jobs, and their files in /proc, which name the job by its cgroup."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from gpumon_sim.physics import Job
from gpumon_sim.workload import GONE, ScenarioJob

FIRST_PID, PIDS = 2_000_000, 2_000_000
"""First id and number of ids for simulated processes. Real processes rarely have ids this high."""
_JOBS, _GPUS, _PLACES = 64, 16, 16
_CGROUP = "/system.slice/slurmstepd.scope/job_{}/step_0/user/task_0"
"""Cgroup of a process in Slurm before 26.05, cgroup version 2."""
_FIRST_JOB = 1000
_FILES = re.compile(r"proc/(\d+)/(stat|status|cgroup)")
_IO = re.compile(r"sys/fs/cgroup(/.+)/io\.stat")
_TICKS = 100
"""Clock ticks per second of the kernel's CPU times."""
STATES = {"R": "running", "S": "sleeping", "D": "disk sleep", "T": "stopped", "t": "tracing stop", "Z": "zombie"}
"""Words for the states of a process, by their letters."""


def pid_of(job: Job, cycle: int, gpu: int, place: int) -> int:
    """Return the id of a job's process on a GPU. `place`: number of the MIG device; 0 without MIG."""
    if job.pid is not None:
        return job.pid
    return FIRST_PID + (((cycle * _JOBS + job.number) * _GPUS + gpu) * _PLACES + place) % PIDS


def read(path: str, runs: Sequence[ScenarioJob], now: float) -> str | None:
    """Return a file of the process, or of the cgroup, of a job; None for any other path. `runs`: the scenario's jobs.

    The files of a process whose id the scenario names are those of that process of this host, if it runs.
    """
    if (match := _IO.fullmatch(path)) is not None:
        return _io(match[1], runs, now)
    if (match := _FILES.fullmatch(path)) is None:
        return None
    pid, file = int(match[1]), match[2]
    if any(pid in run.pids for run in runs):
        return Path(f"/{path}").read_text(encoding="utf-8", errors="replace").strip()
    if not FIRST_PID <= pid < FIRST_PID + PIDS:
        return None
    number = (pid - FIRST_PID) // (_GPUS * _PLACES)
    run = runs[number] if number < len(runs) else ScenarioJob()
    phase = run.phase_at(now)
    if phase is None or phase.do == GONE:
        return None
    ticks = int(run.total(lambda each: each.cpu, now) * _TICKS)
    times = f"{ticks - ticks // 5} {ticks // 5}"
    users = "\t".join(4 * [str(_FIRST_JOB)])
    return {
        "stat": f"{pid} (python3) {phase.process} 1 0 0 0 0 4194304 0 0 0 0 {times} 0 0 20 0 1 0 1000",
        "status": f"Name:\tpython3\nState:\t{phase.process} ({STATES[phase.process]})\nUid:\t{users}",
        "cgroup": f"0::{_cgroup(run, number)}",
    }[file]


def _cgroup(run: ScenarioJob, number: int) -> str:
    return run.cgroup or _CGROUP.format(_FIRST_JOB + number)


def _io(cgroup: str, runs: Sequence[ScenarioJob], now: float) -> str | None:
    """Return the content of io.stat of a cgroup; None while no job has it. Several jobs may have the same cgroup."""
    members = [run for number, run in enumerate(runs) if _cgroup(run, number) == cgroup]
    if not any(run.phase_at(now) for run in members):
        return None
    read_bytes = int(sum(run.total(lambda each: each.read_bytes, now) for run in members))
    return f"8:0 rbytes={read_bytes} wbytes=0 rios={read_bytes >> 17} wios=0 dbytes=0 dios=0"
