"""Routes of the probes: /probe/NAME (its last result, start a run) and /api/v1/probes (stored runs)."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import Field

from gpumon.outputs.formatting import duration
from gpumon.outputs.probe_text import partial_run_note
from gpumon.outputs.responses.base import HostTime
from gpumon.outputs.responses.probes import (
    ProbeRequestResponse,
    ProbeResponse,
    RunningResponse,
    RunResponse,
    RunsResponse,
    RunWithLogResponse,
    age_seconds,
)
from gpumon.probe.core.probes import PROBES
from gpumon.probe.core.result import ProbeResult, current_result
from gpumon.server.context import (
    SINCE,
    AuditedFilter,
    Filter,
    IndentedJson,
    NoParameters,
    completes,
    duration_parameter,
    host_time,
    main_loop_answer,
    moment_parameter,
    probe_parameter,
    sources,
)
from gpumon.server.guard import TOKEN_ERRORS, is_authorized, needs_token
from gpumon.server.problem import Problem, errors
from gpumon.store.probe_runs import RunQuery

router = APIRouter(tags=["probe"])
history = APIRouter(prefix="/api/v1", tags=["node"])

MAX_RUNS = 1000
PAGE_SIZE = 100
TIMEOUT_SECONDS = 5.0
"""Maximum seconds to wait for the main loop to accept or refuse a run."""
NO_RUN = "No run has measured anything yet."
Name = Annotated[str, Path(description=f"{', '.join(PROBES)}.")]


class Assertion(Filter):
    """Query parameters of GET /probe/NAME: a required outcome and a maximum age. If unmet, the answer is 503."""

    asserted: Literal["ok"] | None = Field(
        None,
        alias="assert",
        description="ok: answer 503 unless the outcome of the probe is ok. For `curl -f`.",
    )
    max_age: str | None = Field(None, description="With assert: maximum age of the run, such as 24h.")


@router.get(
    "/probe/{name}",
    summary="The last run of a probe: /probe/allreduce",
    responses={
        202: {"model": ProbeResponse, "description": "No run yet; `next_run` is the time of the first."},
        **errors({404: "No such probe; `probes` lists those that exist.", 503: "The assertion failed."}),
    },
)
async def last(
    request: Request, response: Response, name: Name, wanted: Annotated[Assertion, Query()]
) -> ProbeResponse:
    """Return the last result of the probe and its age, without starting a run."""
    probe = probe_parameter(name)
    report, now = sources(request).latest(), host_time(request)
    answer = ProbeResponse.from_report(report, now, probe.name)
    max_age = None if wanted.max_age is None else duration_parameter("max_age", wanted.max_age)
    if wanted.asserted:
        result, partial = current_result(report.probe.ran, probe.name), partial_run_note(report.probe, probe.name)
        reason = _failed_assertion(result, partial, now, max_age)
        remedy = f"See `probe`. Start a run with POST /probe/{probe.name} or `gpumon probe {probe.name}`."
        if reason:
            raise Problem(503, "Assertion failed", reason, remedy, probe=answer.document())
    elif max_age is not None:
        raise Problem(400, "Invalid parameter", "max_age needs assert.", "Add assert=ok.")
    if answer.last is None:
        response.status_code = 202
        next_run = report.probe.next_runs.get(probe.name)
        if next_run is not None:
            response.headers["Retry-After"] = str(max(1, math.ceil(next_run - now.wall)))
    return answer


@router.post(
    "/probe/{name}",
    status_code=202,
    summary="Run a probe now",
    dependencies=[needs_token],
    responses=errors(
        {
            **TOKEN_ERRORS,
            404: "No such probe; `probes` lists those that exist.",
            409: "The preflight refused the run: see `reason` and `remedy`.",
        }
    ),
)
async def run(
    request: Request, response: Response, name: Name, _: Annotated[AuditedFilter, Query()]
) -> ProbeRequestResponse:
    """Start a run, or join the run of this probe that is in progress. The Location header names the run.

    If a run of another probe is in progress, the answer is 409 and no run is stored.
    """
    probe = probe_parameter(name)
    answer = await main_loop_answer(sources(request).request_probe(probe.name), TIMEOUT_SECONDS)
    location = {"Location": f"/api/v1/probes/{answer.id}"} if answer.id else {}
    if answer.reason:
        detail, remedy = f"The probe may not run now: {answer.reason}.", answer.hint or "Retry later."
        raise Problem(409, "Probe refused", detail, remedy, headers=location, reason=answer.reason, id=answer.id)
    response.headers.update(location | {"Retry-After": "1"})
    return ProbeRequestResponse.model_validate(answer)


def _failed_assertion(result: ProbeResult | None, partial: str, now: HostTime, max_age: float | None) -> str:
    """Return why the assertion failed; "" if it holds. `partial`: note on a newer run with fewer GPUs, or ""."""
    if result is None:
        return NO_RUN
    age = age_seconds(result, now)
    ended = f"Run {result.id} ended {result.outcome} {duration(age)} ago"
    if result.outcome != "ok":
        return " ".join(filter(None, (f"{ended}{': ' + result.reason if result.reason else ''}.", partial)))
    if max_age is not None and age > max_age:
        return f"{ended}, which is longer than {duration(max_age)}."
    return ""


class RunFilter(Filter):
    since: str | None = SINCE
    until: str | None = Field(None, description="Only what is older, for the next page; the same forms as since.")
    probe: str | None = Field(None, description=f"Only of this probe: {', '.join(PROBES)}.")
    limit: int = Field(100, ge=1, le=MAX_RUNS, description="Maximum number, newest first.")


@history.get(
    "/probes",
    response_model=RunsResponse,
    summary="Runs of the probes",
    responses=errors({404: "No such probe; `probes` lists those that exist."}),
)
async def runs(request: Request, chosen: Annotated[RunFilter, Query()]) -> Response:
    """Return the runs that match all parameters, newest first, as far back as they are stored."""
    now = sources(request).wall()
    query = RunQuery(
        probe=None if chosen.probe is None else probe_parameter(chosen.probe).name,
        since=moment_parameter("since", chosen.since, now),
        until=moment_parameter("until", chosen.until, now),
    )
    # Only the Report has runs that the store could not write, and only the store has older runs.
    results = {run.id: run for run in sources(request).latest().probe.results if query.matches(run)}
    complete = await completes(_add_stored(request, query, chosen.limit, results))
    newest = sorted(results.values(), key=lambda run: run.started, reverse=True)[: chosen.limit]

    def answer() -> Response:
        response = RunsResponse(probes=[RunResponse.model_validate(run) for run in newest], complete=complete)
        return IndentedJson(response.document())

    return await asyncio.to_thread(answer)  # a thousand runs take a second to render


@history.get(
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
    """Add the newest `limit` stored runs to `results`. They are read in pages, so that others can read too."""
    left = limit
    while left > 0:
        page = await asyncio.wrap_future(sources(request).find_runs(replace(query, limit=min(left, PAGE_SIZE))))
        results.update({run.id: run for run in page.results if run.id not in results})
        if page.last is None:
            return
        left -= len(page.results)
        query = replace(query, before=page.last)
