"""The checks of GPUs that owners hold."""

from __future__ import annotations

from dataclasses import replace

from each_case import each_case
from judging import Ward

from gpumon.health.check_row import HOUR, MINUTE
from gpumon.health.policy import Policy
from gpumon.health.verdict import Level
from gpumon.model.allocation import Allocation, AllocationUse, Owner
from gpumon.model.instant import Instant

OWNER = Owner(slurm_job_id="4711", user="alice")


def hold(ward: Ward, seconds: float, *, share: float = 1.0, level: str = "no_process", held: float = 1.0) -> Ward:
    """Let an owner hold GPU 1 for the share `held` of the time, of which the GPU is idle for `share`, at this level."""
    uuid = ward.report.gpus[1].uuid
    began = Instant(ward.report.boot_id, ward.at, ward.wall)
    allocation = Allocation(uuid=uuid, source="mapping", owner=OWNER, began=began, last_wall=ward.wall)
    for _ in range(int(seconds / 30)):
        before = ward.report.jobs.uses.get(uuid) or AllocationUse(
            allocated_seconds_total=0.0, idle_seconds_total={"no_process": 0.0, "no_kernel": 0.0, "cold": 0.0}
        )
        idle = dict(before.idle_seconds_total or {})
        idle[level] += 30 * share * held
        use = AllocationUse(
            allocated_seconds_total=(before.allocated_seconds_total or 0.0) + 30 * held, idle_seconds_total=idle
        )
        jobs = replace(ward.report.jobs, allocations=(allocation,), uses={uuid: use}, names=frozenset({"slurm_job_id"}))
        ward.report = replace(ward.report, jobs=jobs)
        ward.go_on(30, every=30)
    return ward


def test_a_gpu_that_an_owner_holds_idle_for_an_hour_is_reported() -> None:
    """For information, with the public name of the owner and the level; it is cleared when the GPU works."""
    ward = hold(Ward(gpus=2, ports=0), 50 * MINUTE)
    assert ward.verdict("gpu_held_idle", 1) is None
    verdict = hold(ward, 20 * MINUTE).verdict("gpu_held_idle", 1)
    assert verdict is not None
    assert verdict.level is Level.WARN
    assert verdict.reason == (
        "slurm/4711 has held it for an hour in which it was idle 100% of the time, mostly without a process."
    )
    assert hold(ward, HOUR, share=0.0).verdict("gpu_held_idle", 1) is None


@each_case(
    ("share", "held", "limit"),
    [(0.8, 1.0, 0.9), (1.0, 0.5, 0.9), (1.0, 0.0, 0.9), (1.0, 1.0, None)],
)
def test_a_gpu_that_works_or_is_free_is_not_held_idle(share: float, held: float, limit: float | None) -> None:
    """A GPU that works for more than a tenth of the hour, or that was free for a part of it, is not reported."""
    ward = Ward(gpus=2, ports=0, policy=Policy(thresholds={"max_held_idle_ratio": limit}))
    assert hold(ward, 70 * MINUTE, share=share, held=held).verdict("gpu_held_idle", 1) is None
