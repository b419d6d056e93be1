"""Rows for jobs: one that hangs, with the rank that the others wait for, and one that holds a GPU without use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gpumon.health.verdict import JOB, Action
from gpumon_sim.board import Profile
from gpumon_sim.faults.conditions import several
from gpumon_sim.faults.row import MINUTE, NOW, FaultRow, of_node

Phases = list[Mapping[str, Any]]
CGROUP = "/system.slice/slurmstepd.scope/job_1000/step_0/user/task_0"
SOON: Mapping[str, Mapping[str, Any]] = {"health": {"thresholds": {"min_moving_seconds": MINUTE}}}
"""Settings with which a job has moved for long enough when the fault begins."""
ODD, OTHERS = [1], [0, 2, 3, 4, 5, 6, 7]
"""GPU of the rank that differs, and those of the other ranks, on a node with eight GPUs."""
WORK, SPIN = {"do": "work"}, {"do": "spin"}


def ranks(phases: Phases, **job: Any) -> dict[str, Any]:
    """Return ranks of the job, by default on all GPUs, with these phases."""
    return {"cgroup": CGROUP, "phases": phases, **job}


def eight(profile: Profile) -> bool:
    return len(profile.bus_ids) == len(ODD + OTHERS) and not profile.mig


def rows() -> Iterator[FaultRow]:
    yield _hang("a collective hangs on all its GPUs", [[SPIN]], lambda each: several(each) and not each.mig)
    yield _hang("a kernel hangs on its only GPU", [[SPIN]], lambda each: not several(each), within=12 * MINUTE)
    for name, phase, minutes in (
        ("a rank has died, and the others wait for it", {"do": "gone"}, 6),
        ("a rank is stopped, and the others wait for it", {"do": "idle", "process": "T"}, 6),
        ("a rank waits for a lock, and the others for the rank", {"do": "idle", "process": "S"}, 12),
    ):
        yield _hang(name, [[phase], [SPIN]], eight, within=minutes * MINUTE)
    yield FaultRow(
        name="a job holds it for an hour and launches no kernel",
        check="gpu_held_idle",
        action=Action.NONE,
        before={"jobs": [ranks([WORK], gpus=ODD)]},
        steps=of_node(jobs=[ranks([{**WORK, "seconds": NOW}, {"do": "idle"}], gpus=ODD)]),
        on=lambda profile: several(profile) and not profile.mig and len(profile.bus_ids) < len(OTHERS),
        within=65 * MINUTE,
    )


def _hang(name: str, last: list[Phases], on: Callable[[Profile], bool], within: float = 6 * MINUTE) -> FaultRow:
    """Return the row of a job that stops. `last`: what its ranks do then; all alike, or the odd one and the others."""
    places = [{}] if len(last) == 1 else [{"gpus": ODD}, {"gpus": OTHERS}]
    worked = {**WORK, "seconds": NOW}
    hanging = [ranks([worked, *phases], **place) for phases, place in zip(last, places, strict=True)]
    return FaultRow(
        name=name,
        check="job_stalled",
        where=f"{JOB}slurm/1000",
        action=Action.NONE,
        before={"jobs": [ranks([WORK], **place) for place in places]},
        steps=of_node(jobs=hanging),
        on=on,
        within=within,
        settings=SOON,
    )
