"""Ids of the processes of simulated jobs, and their files in /proc, which name the job by its cgroup."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from gpumon_sim.physics import Job
from gpumon_sim.workload import ScenarioJob

FIRST_PID, PIDS = 2_000_000, 2_000_000
"""First id and number of ids for simulated processes. Real processes rarely have ids this high."""
_JOBS, _GPUS, _PLACES = 64, 16, 16
_CGROUP = "/system.slice/slurmstepd.scope/job_{}/step_0/user/task_0"
"""Cgroup of a process in Slurm before 26.05, cgroup version 2."""
_FIRST_JOB = 1000
_FILES = re.compile(r"proc/(\d+)/(stat|status|cgroup)")


def pid_of(job: Job, cycle: int, gpu: int, place: int) -> int:
    """Return the id of a job's process on a GPU. `place`: number of the MIG device; 0 without MIG."""
    if job.pid is not None:
        return job.pid
    return FIRST_PID + (((cycle * _JOBS + job.number) * _GPUS + gpu) * _PLACES + place) % PIDS


def read(path: str, runs: Sequence[ScenarioJob]) -> str | None:
    """Return a file of the process of a job; None for any other path. `runs`: the jobs of the scenario.

    The files of a process whose id the scenario names are those of that process of this host, if it runs.
    """
    match = _FILES.fullmatch(path)
    if match is None:
        return None
    pid, file = int(match[1]), match[2]
    if any(pid in run.pids for run in runs):
        return Path(f"/{path}").read_text(encoding="utf-8", errors="replace").strip()
    if not FIRST_PID <= pid < FIRST_PID + PIDS:
        return None
    number = (pid - FIRST_PID) // (_GPUS * _PLACES)
    cgroup = runs[number].cgroup if number < len(runs) else None
    return {
        "stat": f"{pid} (python3) R 1 0 0 0 0 4194304 0 0 0 0 0 0 0 0 20 0 1 0 1000",
        "status": f"Name:\tpython3\nState:\tR (running)\nUid:\t{_FIRST_JOB}\t{_FIRST_JOB}\t{_FIRST_JOB}\t{_FIRST_JOB}",
        "cgroup": f"0::{cgroup or _CGROUP.format(_FIRST_JOB + number)}",
    }[file]
