"""/api/v1/probes: runs of the probes, as far back as the store keeps them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from pydantic import Field
from starlette.responses import Response

from gpumon.outputs import document
from gpumon.probe.core.probes import PROBES
from gpumon.probe.core.result import ProbeResult
from gpumon.server import parameters, schema_probe
from gpumon.server.api import SINCE, Filter, Nothing
from gpumon.server.guard import is_authorized
from gpumon.server.problem import Problem
from gpumon.server.responses import reply, sources
from gpumon.store.errors import StoreError
from gpumon.store.runs import RunQuery

router = APIRouter(prefix="/api/v1", tags=["node"])

MOST = 1000
PAGE = 100
PATIENCE = 5.0
"""Seconds for the store to answer; then what the Report holds has to do."""


class ProbeFilter(Filter):
    since: str | None = SINCE
    until: str | None = Field(None, description="Only what is older, for the next page: as since.")
    probe: str | None = Field(None, description=f"Only of this probe: {', '.join(PROBES)}.")
    limit: int = Field(100, ge=1, le=MOST, description="How many, the newest first.")


@router.get(
    "/probes",
    response_model=schema_probe.Probes,
    summary="Runs of the probes",
    responses={404: {"description": "No such probe; `probes` names those that there are."}},
)
async def probes(request: Request, chosen: Annotated[ProbeFilter, Query()]) -> Response:
    """The newest first, as far back as the store keeps them."""
    query = _query(chosen, sources(request).wall())
    # What was told while the store was out of order is in the Report alone, and what is older in the store alone.
    found = {one.id: one for one in sources(request).latest().probe.known if query.matches(one)}
    complete = await _search(request, query, chosen.limit, found)
    newest = sorted(found.values(), key=lambda one: one.started, reverse=True)[: chosen.limit]
    return await asyncio.to_thread(_answer, newest, complete=complete)  # a thousand take their time


@router.get(
    "/probes/{run}",
    response_model=schema_probe.ProbeResultWithLog,
    summary="One run",
    responses={
        202: {"model": schema_probe.ProbeRunning, "description": "In progress: ask again."},
        404: {"description": "No such run, or no longer stored."},
    },
)
async def one_probe(request: Request, run: Annotated[str, Path(description="Id of the run.")], _: Nothing) -> Response:
    """While it is in progress, how far it is. With the token, what its ranks printed is shown too."""
    state = sources(request).latest().probe
    if run == state.running:
        return reply(document.probe_running(state), 202, {"Retry-After": "1"})
    found = {one.id: one for one in state.known if one.id == run}
    if not found:
        await _search(request, RunQuery(id=run), 1, found)
    if not found:
        raise unknown_run(run)
    return reply(document.probe_result(found[run]) | _log(request, found[run]))


def unknown_run(run: str) -> Problem:
    return Problem(404, "Unknown run", f"There is no run {run!r}.", "/api/v1/probes names those that are stored.")


async def _search(request: Request, query: RunQuery, limit: int, found: dict[str, ProbeResult]) -> bool:
    """Add what the store has, until it is enough. False when the store does not answer."""
    try:
        async with asyncio.timeout(PATIENCE):
            async for results in _stored(request, query, limit):
                found.update({one.id: one for one in results if one.id not in found})
    except (StoreError, TimeoutError):
        return False
    return True


async def _stored(request: Request, query: RunQuery, limit: int) -> AsyncIterator[Collection[ProbeResult]]:
    """Newest first, in pages: no long search keeps the store from its work."""
    left = limit
    while left > 0:
        page = await asyncio.wrap_future(sources(request).find_runs(replace(query, limit=min(left, PAGE))))
        yield page.results
        if page.last is None:
            return
        left -= len(page.results)
        query = replace(query, before=page.last)


def _query(chosen: ProbeFilter, now: float) -> RunQuery:
    return RunQuery(
        probe=None if chosen.probe is None else parameters.probe(chosen.probe).name,
        since=None if chosen.since is None else parameters.moment("since", chosen.since, now),
        until=None if chosen.until is None else parameters.moment("until", chosen.until, now),
    )


def _answer(results: Collection[ProbeResult], *, complete: bool) -> Response:
    return reply({"probes": [document.probe_result(one) for one in results], "complete": complete})


def _log(request: Request, result: ProbeResult) -> document.Document:
    return {"log": result.log} if is_authorized(request) else {}
