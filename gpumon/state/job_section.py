"""The section `jobs`: who holds the GPUs, since when, and how much of that time they are idle. Pure."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

from gpumon.health.checks.jobs import is_active
from gpumon.health.checks.work import SPIN_DRAW, SPIN_TRAFFIC
from gpumon.health.policy import Policy
from gpumon.model.allocation import AllocationInfo, OwnerReadings
from gpumon.model.gpu import Gpu
from gpumon.model.instant import Instant
from gpumon.model.job import MOVING, Job, JobMetrics
from gpumon.model.reading import Labels, Table, rows
from gpumon.model.snapshot import HostSnapshot, ProcessReadings
from gpumon.state import job_pace
from gpumon.state.allocations import JobState, account, assign
from gpumon.state.messages import StoredState, Tick
from gpumon.state.report import Report
from gpumon.state.section import LogLine, Step

OWNERS = "owners"
"""Name of the reader. Its value is None if it failed or is quarantined."""


def apply(jobs: JobState, step: Step) -> JobState:
    """Return the state after a message."""
    report, message = step.report, step.message
    match message:
        case StoredState(allocations=stored):
            same = {each.key: each for each in stored if not each.ended and each.began.boot_id == report.boot_id}
            return replace(jobs, suspended={**same, **jobs.suspended})
        case HostSnapshot():
            return _assigned(jobs, step) if OWNERS in message.values else jobs
        case Tick():
            if not report.host.is_current and jobs.allocations:
                jobs = _assigned(jobs, step)
            cold = {state.uuid: _is_cold(state.gpu, step.settings.policy) for state in report.gpus}
            jobs = job_pace.determine_motions(jobs, report.gpus, step.settings.policy, step.now)
            return account(jobs, report.gpus, cold)
    return jobs


def _assigned(jobs: JobState, step: Step) -> JobState:
    current = step.report.host.current
    readings = None if current is None else current.value(OwnerReadings)
    jobs = assign(jobs, readings, step.report.gpus, Instant(step.report.boot_id, step.now.at, step.now.wall))
    read = {} if readings is None else readings.processes
    processes = job_pace.processes(jobs, read, step.now.at)
    return replace(jobs, names=step.settings.owner_names, processes=processes)


def _is_cold(gpu: Gpu, policy: Policy) -> bool | None:
    """Return True for a GPU with little power and memory traffic, by the limits of the check gpu_spin."""
    draw, traffic, used = policy.limit(SPIN_DRAW), policy.limit(SPIN_TRAFFIC), job_pace.memory_traffic(gpu)
    if draw is None or traffic is None or used is None or gpu.power_watts is None or not gpu.power_limit_watts:
        return None
    return gpu.power_watts < draw * gpu.power_limit_watts and used <= traffic


def tables(report: Report) -> Iterator[tuple[Table, Labels]]:
    """Yield the owners of each GPU, with the names that are configured as labels, and the time that it was held."""
    labels = {state.uuid: state.labels for state in report.gpus}
    infos: dict[tuple[AllocationInfo, Labels], None] = {}  # two owners may differ only in names that are no labels
    for each in report.jobs.exported:
        if each.uuid in labels:
            names = {name: text for name, text in each.owner.names.items() if name in report.jobs.names}
            job_id, mig = report.jobs.job_id(each.owner), each.mig_uuid or None
            infos[AllocationInfo(mig_uuid=mig, source=each.source, job_id=job_id, **names), labels[each.uuid]] = None
    yield from infos
    for uuid, use in report.jobs.uses.items():
        if uuid in labels:
            yield use, labels[uuid]
    contained = report.host.value(ProcessReadings).contained
    for job in report.jobs.jobs:
        yield _metrics(report.jobs, job, active=is_active(job, contained=contained)), (("job_id", job.id),)


def _metrics(jobs: JobState, job: Job, *, active: bool | None) -> JobMetrics:
    motions = [gpu.pace.motion_at(job.at) for gpu in job.gpus]
    now, moved_at = jobs.ticked_at, job.moved_at
    public = rows(JobMetrics).keys() & jobs.names
    return JobMetrics(
        source=job.source,
        gpus=float(len(job.gpus)),
        moving_ratio=None if None in motions else motions.count(MOVING) / len(motions),
        active=None if active is None else float(active),
        last_moving_timestamp_seconds=now.wall_at(moved_at) if now and moved_at is not None else None,
        **{name: text for name, text in job.owner.names.items() if name in public},
    )


def changes(before: Report, after: Report) -> Iterator[LogLine]:
    """Yield the log lines for GPUs whose allocations are contradicted. No name of a user is logged."""
    if before.jobs.conflicts is after.jobs.conflicts:
        return
    for uuid in after.jobs.conflicts:
        if uuid not in before.jobs.conflicts:
            yield LogLine(logging.WARNING, "the owners of the GPU are contradicted: see gpumon jobs", {"uuid": uuid})
    for uuid in before.jobs.conflicts.keys() - after.jobs.conflicts.keys():
        yield LogLine(logging.INFO, "the owners of the GPU are no longer contradicted", {"uuid": uuid})
