"""Routes /api/v1/probes: stored runs of the probes."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from pydantic import Field
from starlette.responses import Response

from gpumon.outputs.responses.probes import RunningResponse, RunResponse, RunsResponse, RunWithLogResponse
from gpumon.probe.core.probes import PROBES
from gpumon.probe.core.result import ProbeResult
from gpumon.server import parameters
from gpumon.server.context import Filter, IndentedJson, NoParameters, completes, sources
from gpumon.server.guard import is_authorized
from gpumon.server.problem import Problem, errors
from gpumon.store.probe_runs import RunQuery

router = APIRouter(prefix="/api/v1", tags=["node"])

MAX_RUNS = 1000
PAGE_SIZE = 100


class RunFilter(Filter):
    since: str | None = parameters.SINCE
    until: str | None = Field(None, description="Only what is older, for the next page; the same forms as since.")
    probe: str | None = Field(None, description=f"Only of this probe: {', '.join(PROBES)}.")
    limit: int = Field(100, ge=1, le=MAX_RUNS, description="Maximum number, newest first.")


@router.get(
    "/probes",
    response_model=RunsResponse,
    summary="Runs of the probes",
    responses=errors({404: "No such probe; `probes` lists those that exist."}),
)
async def runs(request: Request, chosen: Annotated[RunFilter, Query()]) -> Response:
    """Return the runs that match all parameters, newest first, as far back as they are stored."""
    query = _query(chosen, sources(request).wall())
    # Only the Report has runs that the store could not write, and only the store has older runs.
    results = {run.id: run for run in sources(request).latest().probe.results if query.matches(run)}
    complete = await completes(_add_stored(request, query, chosen.limit, results))
    newest = sorted(results.values(), key=lambda run: run.started, reverse=True)[: chosen.limit]
    return await asyncio.to_thread(_answer, newest, complete=complete)  # a thousand runs take a second to render


@router.get(
    "/probes/{run}",
    response_model=RunWithLogResponse,
    response_model_exclude_unset=True,
    summary="One run",
    responses={
        202: {"model": RunningResponse, "description": "In progress: retry."},
        **errors({404: "No such run, or it is no longer stored."}),
    },
)
async def run_by_id(
    request: Request, run: Annotated[str, Path(description="Id of the run.")], _: NoParameters
) -> RunWithLogResponse | Response:
    """Return a run, or its progress if it has not ended. With the token, include the output of its ranks."""
    state = sources(request).latest().probe
    if run == state.running:
        progress = RunningResponse.from_state(state, run).document()
        return IndentedJson(progress, 202, {"Retry-After": "1"})
    results = {result.id: result for result in state.results if result.id == run}
    if not results:
        await completes(_add_stored(request, RunQuery(id=run), 1, results))
    if not results:
        raise Problem(404, "Unknown run", f"There is no run {run!r}.", "/api/v1/probes lists those that are stored.")
    stored = results[run]
    return RunWithLogResponse.model_validate(stored if is_authorized(request) else RunResponse.model_validate(stored))


async def _add_stored(request: Request, query: RunQuery, limit: int, results: dict[str, ProbeResult]) -> None:
    """Add the newest `limit` stored runs of a query to `results`, a dict by id.

    They are read in pages, the newest first, so that the store is not blocked.
    """
    left = limit
    while left > 0:
        page = await asyncio.wrap_future(sources(request).find_runs(replace(query, limit=min(left, PAGE_SIZE))))
        results.update({run.id: run for run in page.results if run.id not in results})
        if page.last is None:
            return
        left -= len(page.results)
        query = replace(query, before=page.last)


def _query(chosen: RunFilter, now: float) -> RunQuery:
    return RunQuery(
        probe=None if chosen.probe is None else parameters.probe(chosen.probe).name,
        since=None if chosen.since is None else parameters.moment("since", chosen.since, now),
        until=None if chosen.until is None else parameters.moment("until", chosen.until, now),
    )


def _answer(results: Collection[ProbeResult], *, complete: bool) -> Response:
    response = RunsResponse(probes=[RunResponse.model_validate(result) for result in results], complete=complete)
    return IndentedJson(response.document())
