"""Responses about the owners of GPUs: jobs, pods, units and users, with the GPUs that they hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from pydantic import Field
from typing_extensions import Self

from gpumon.health.checks.jobs import waits_for_storage
from gpumon.model.allocation import SOURCES, Allocation, Owner
from gpumon.model.job import Pace
from gpumon.outputs.formatting import rfc3339
from gpumon.outputs.responses.base import Number, ResponseModel, timestamp
from gpumon.state.report import Report


class AllocationResponse(ResponseModel):
    """One GPU or MIG instance that an owner holds, and the use of it since it was given."""

    gpu: int | None = Field(description="Index of the GPU; null if the GPU is not in the inventory.")
    uuid: str
    mig_uuid: str | None = Field(description="UUID of the MIG instance; null for the whole GPU.")
    source: Literal[SOURCES] = Field(  # type: ignore[valid-type]
        description="mapping: files of the scheduler's prolog. kubelet: its PodResources. process: the cgroup of a "
        "process on the GPU."
    )
    confirmed: bool = Field(description="False: the source does not answer, and this is its last answer.")
    since: str = timestamp("When the owner got the GPU, or was first detected on it.")
    motion: str | None = Field(
        description="moving: the GPU uses its memory, tensor cores or NVLinks. still: it is busy without that, at low "
        "and constant power. idle: it runs no kernel. other: none of these. null: not known, or no longer held."
    )
    moved_at: str | None = timestamp("When it was last moving for this owner.")
    held_seconds: Number = Field(description="Observed time, times the owner's share of the GPU, like the following.")
    busy_seconds: Number
    no_process_seconds: Number = Field(description="Without a process on the GPU.")
    no_kernel_seconds: Number = Field(description="With processes, of which none ran a kernel.")
    cold_seconds: Number = Field(description="With kernels, but with little power and hardly any memory access.")
    energy_joules: Number

    @classmethod
    def from_allocation(cls, allocation: Allocation, report: Report) -> Self:
        state, now = report.gpu(allocation.uuid), report.jobs.ticked_at
        pace = Pace() if allocation.ended else report.jobs.paces.get(allocation.key, Pace())
        return cls.copied(
            allocation,
            gpu=None if state is None else state.index,
            mig_uuid=allocation.mig_uuid or None,
            confirmed=allocation.key not in report.jobs.suspended,
            since=rfc3339(allocation.began.wall),
            motion=None if now is None else pace.motion_at(now.uptime),
            moved_at=None if pace.moved_at is None or now is None else rfc3339(now.wall_at(pace.moved_at)),
            **{
                name: round(getattr(allocation, name), 3)
                for name in cls.model_fields
                if name.endswith(("_seconds", "_joules"))
            },
        )


class UseResponse(ResponseModel):
    """One allocation that is or was in force."""

    job: str = Field(description="Id of the owner, as in /api/v1/jobs.")
    owner: Owner = Field(description="Null: the source does not have the name, or the client may not read it.")
    allocation: AllocationResponse
    until: str = timestamp("When its source last named the owner.")
    ended: bool


class UsesResponse(ResponseModel):
    """What owners have used of the GPUs."""

    allocations: list[UseResponse] = Field(description="The one that began last comes last.")
    complete: bool = Field(
        description="False: there are more than `limit`, or the store did not answer. Older ones are missing."
    )

    @classmethod
    def from_allocations(
        cls, allocations: Sequence[Allocation], report: Report, *, complete: bool, everything: bool
    ) -> Self:
        owners = [each.owner if everything else report.jobs.public(each.owner) for each in allocations]
        return cls(
            allocations=[
                UseResponse(
                    job=owner.key,
                    owner=owner,
                    allocation=AllocationResponse.from_allocation(each, report),
                    until=rfc3339(each.last_wall),
                    ended=each.ended,
                )
                for each, owner in zip(allocations, owners, strict=True)
            ],
            complete=complete,
        )


class JobResponse(ResponseModel):
    """One owner of GPUs: a job, a pod, a container, a unit or a user."""

    id: str = Field(description="Kind and name of the owner, such as slurm/4711 or pod/NAMESPACE/NAME.")
    owner: Owner = Field(description="Null: the source does not have the name, or the client may not read it.")
    gpus: list[int] = Field(description="Indexes of its GPUs.")
    since: str = timestamp("When it got the first of them.")
    waits_for_storage: bool = Field(
        description="A process of it waits for a disk, or its cgroup reads or writes: it is never found stalled then."
    )
    allocations: list[AllocationResponse]


CONTRADICTED = "its owners are contradicted by another source or by its processes"
"""Text of a conflict for readers who may not know the names of owners."""


class JobsResponse(ResponseModel):
    """The owners of the GPUs of this node."""

    jobs: list[JobResponse] = Field(description="Sorted by their first GPU.")
    free: list[int] = Field(description="Indexes of GPUs without an owner.")
    unknown: list[int] = Field(description="Indexes of GPUs without an owner that a source may not have reported.")
    conflicts: dict[str, str] = Field(
        description="By uuid, for a GPU that two sources give to different owners, or that processes of others use."
    )
    silent: bool = Field(description="A source is there that does not answer, or that may not be read.")
    unresolved: list[str] = Field(description="Devices that a source has given to an owner, and that are no GPU here.")
    omitted: int = Field(description="Number of allocations that are left out: at most 1024 are known.")

    @classmethod
    def from_report(cls, report: Report, *, everything: bool = False) -> Self:
        """Return the owners with all names or, unless `everything`, with those that every reader may know."""
        jobs = report.jobs
        held = {each.uuid for each in (*jobs.allocations, *jobs.suspended.values())}
        rest = [state for state in report.gpus if state.uuid not in held]
        return cls(
            jobs=list(_jobs(report, everything=everything)),
            free=[state.index for state in rest if jobs.known.get(state.uuid)],
            unknown=[state.index for state in rest if not jobs.known.get(state.uuid)],
            conflicts=dict(jobs.conflicts) if everything else dict.fromkeys(jobs.conflicts, CONTRADICTED),
            silent=jobs.silent,
            unresolved=list(jobs.unresolved),
            omitted=jobs.dropped,
        )


def _jobs(report: Report, *, everything: bool) -> Iterator[JobResponse]:
    """Yield the owners, sorted by their first GPU."""

    def shown(owner: Owner) -> Owner:
        return owner if everything else report.jobs.public(owner)

    held: dict[str, list[Allocation]] = {}
    waiting = {job.owner.key for job in report.jobs.jobs if waits_for_storage(job.gpus)}
    for each in (*report.jobs.allocations, *report.jobs.suspended.values()):
        held.setdefault(shown(each.owner).key, []).append(each)
    for key, allocations in held.items():
        responses = [AllocationResponse.from_allocation(each, report) for each in allocations]
        yield JobResponse(
            id=key,
            owner=shown(allocations[0].owner),
            gpus=sorted({each.gpu for each in responses if each.gpu is not None}),
            since=rfc3339(min(each.began.wall for each in allocations)),
            waits_for_storage=any(each.owner.key in waiting for each in allocations),
            allocations=responses,
        )
