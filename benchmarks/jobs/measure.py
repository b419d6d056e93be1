"""Run jobs on simulated nodes, and return the verdicts of job_stalled."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import yaml
from gpumon_sim.profiles import PROFILES
from gpumon_sim.scenario import parse

from benchmarks.jobs.kinds import CALM, HANGS, MINUTE, STEADY, WAITING, Cycle, length, script, work
from benchmarks.jobs.node import JobNode
from gpumon.health.verdict import JOB
from gpumon.model.allocation import Claim, Owner

HOUR = 60 * MINUTE
RUN_HOURS = 4.0
"""Simulated hours of a node without a hang."""
PATIENCE = 40 * MINUTE
"""Time after a hang in which the verdict must be raised."""
FIRST_JOB = 1000
CALM_GPUS, HANG_GPUS = 2, 4
"""GPUs of a job that does not hang, and of one that does."""


class Hang(NamedTuple):
    """A job that hung."""

    kind: str
    paused: bool
    """Whether it had paused before, or its GPUs had waited for a rank."""
    seconds: float | None
    """Time from the hang to the verdict; None if there was none in time."""


def raised(profile: str, seed: int, jobs: Sequence[Cycle], gpus: int, seconds: float) -> Iterator[tuple[int, float]]:
    """Run jobs beside each other on a node. Yield number and time for each job that is reported."""
    entries, claims, kind = [], [], PROFILES[profile]
    uuids = [identity.uuid for identity in parse("", kind).identities]
    for number, (first, others) in enumerate(jobs):
        held = list(range(number * gpus, (number + 1) * gpus))
        cgroup = f"/system.slice/slurmstepd.scope/job_{FIRST_JOB + number}/step_0/user/task_0"
        entries += [{"gpus": held[:1], "cgroup": cgroup, "phases": first}]
        entries += [{"gpus": held[1:], "cgroup": cgroup, "phases": others}]
        owner = Owner(slurm_job_id=str(FIRST_JOB + number))
        claims.append(Claim(owner=owner, devices=tuple(uuids[gpu] for gpu in held)))
    with tempfile.TemporaryDirectory(prefix="gpumon-jobs-") as folder:
        scenario = Path(folder) / "scenario.yml"
        scenario.write_text(yaml.safe_dump({"jobs": entries}))
        node = JobNode(kind, scenario, tuple(claims) if seed % 2 else None)
        for at, verdict in node.raised(seconds):
            yield int(verdict.device.removeprefix(f"{JOB}slurm/")) - FIRST_JOB, at


def measure_calm(profile: str, seed: int) -> list[tuple[str, int]]:
    """Return the kind of each job on a node, and the number of verdicts about it, all of which are false."""
    chance, seconds = Random(seed), RUN_HOURS * HOUR  # noqa: S311 - reproducible
    slots = len(PROFILES[profile].bus_ids) // CALM_GPUS
    kinds = [tuple(CALM)[(seed * slots + slot) % len(CALM)] for slot in range(slots)]
    false = dict.fromkeys(range(slots), 0)
    for job, _ in raised(profile, seed, [script(kind, chance, seconds) for kind in kinds], CALM_GPUS, seconds):
        false[job] += 1
    return [(kind, false[slot]) for slot, kind in enumerate(kinds)]


def measure_hangs(profile: str, seed: int) -> list[Hang]:
    """Return what was found on a node whose jobs hang."""
    chance = Random(seed)  # noqa: S311 - as above
    slots = len(PROFILES[profile].bus_ids) // HANG_GPUS
    kinds = [tuple(HANGS)[(seed * slots + slot) % len(HANGS)] for slot in range(slots)]
    pasts = [chance.choice([STEADY, chance.choice(WAITING)]) for _ in kinds]
    jobs = [_hanging(kind, past, chance) for kind, past in zip(kinds, pasts, strict=True)]
    begins = [length(first[:-1]) for first, _ in jobs]
    found: dict[int, float] = {}
    for job, at in raised(profile, seed, jobs, HANG_GPUS, max(begins) + PATIENCE):
        if begins[job] <= at <= begins[job] + PATIENCE:
            found.setdefault(job, at - begins[job])
    return [Hang(kind, pasts[n] != STEADY, found.get(n)) for n, kind in enumerate(kinds)]


def _hanging(kind: str, past: str, chance: Random) -> Cycle:
    """Return the phases of a job that works for at least half an hour, and then hangs for ever."""
    first, others = script(past, chance, chance.uniform(15, 60) * MINUTE)
    last, (one, other) = work(chance.uniform(10, 20) * MINUTE), HANGS[kind]
    return [*first, last, one], [*others, last, other]
