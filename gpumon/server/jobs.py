"""Routes about the owners of GPUs, below /api/v1: those of now, and what they have used."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from pydantic import Field

from gpumon.model.allocation import Allocation
from gpumon.outputs.responses.jobs import JobResponse, JobsResponse, UsesResponse
from gpumon.server.context import SINCE, Filter, NoParameters, completes, gpu_parameter, moment_parameter, sources
from gpumon.server.guard import is_authorized
from gpumon.server.problem import Problem, errors
from gpumon.store.allocations import AllocationQuery

router = APIRouter(prefix="/api/v1", tags=["jobs"])


class UseFilter(Filter):
    gpu: str | None = Field(None, description="Only of this GPU: uuid or index.")
    since: str | None = SINCE
    until: str | None = Field(None, description="Only what is older: 1h, RFC 3339, or seconds since the epoch.")
    limit: int = Field(10_000, ge=1, le=10_000, description="Maximum number: those that began last.")


@router.get("/jobs", summary="Jobs, pods and others that hold GPUs")
async def jobs(request: Request, _: NoParameters) -> JobsResponse:
    """Return who holds the GPUs. Only clients that may change the state of the agent read all names."""
    return JobsResponse.from_report(sources(request).latest(), everything=is_authorized(request))


@router.get("/jobs/{name:path}", summary="One owner of GPUs", responses=errors({404: "It holds no GPU of this node."}))
async def job(
    request: Request, name: Annotated[str, Path(description="Its id, such as slurm/4711.")], _: NoParameters
) -> JobResponse:
    for each in JobsResponse.from_report(sources(request).latest(), everything=is_authorized(request)).jobs:
        if name == each.id:
            return each
    raise Problem(404, "Unknown job", f"{name[:80]!r} holds no GPU of this node.", "Use an id from /api/v1/jobs.")


@router.get("/allocations", summary="What owners have used of the GPUs")
async def allocations(request: Request, chosen: Annotated[UseFilter, Query()]) -> UsesResponse:
    """Return the allocations that were in force in a time, as far back as they are stored."""
    latest, now = sources(request).latest(), sources(request).wall()
    query = AllocationQuery(
        uuid=None if chosen.gpu is None else gpu_parameter(latest, chosen.gpu).uuid,
        since=moment_parameter("since", chosen.since, now),
        until=moment_parameter("until", chosen.until, now),
        limit=chosen.limit + 1,
    )
    found: dict[str, Allocation] = {}
    complete = await completes(_add_stored(request, query, found))
    found |= {each.id: each for each in latest.jobs.every if query.matches(each)}
    return UsesResponse.from_allocations(
        sorted(found.values(), key=lambda each: each.began.wall)[-chosen.limit :],
        latest,
        complete=complete and len(found) <= chosen.limit,
        everything=is_authorized(request),
    )


async def _add_stored(request: Request, query: AllocationQuery, found: dict[str, Allocation]) -> None:
    stored = await asyncio.wrap_future(sources(request).find_allocations(query))
    found |= {each.id: each for each in stored}
