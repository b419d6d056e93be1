"""/probe/NAME: the last result for everyone, at once and without side effect; a new run for who has the token."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request
from pydantic import Field
from starlette.responses import Response

from gpumon.outputs import document
from gpumon.outputs.standing import unanswered
from gpumon.outputs.words import duration
from gpumon.probe.core.probes import ALL_REDUCE, PROBES
from gpumon.probe.core.result import ProbeRequest, ProbeResult
from gpumon.probe.core.standing import standing
from gpumon.probe.core.state import ProbeState
from gpumon.server import parameters, schema_probe
from gpumon.server.api import Filter, Nothing
from gpumon.server.guard import authorize
from gpumon.server.problem import Problem
from gpumon.server.responses import awaited, reply, sources, stamp

router = APIRouter(tags=["probe"])

PATIENCE = 5.0
"""Seconds for the main loop to say what becomes of a request."""
NOTHING_YET = "No run has measured anything yet."
Name = Annotated[str, Path(description=f"{', '.join(PROBES)}.")]


class Assertion(Filter):
    """What a caller wants to be true."""

    asserted: Literal["ok"] | None = Field(
        None,
        alias="assert",
        description="ok: answer 503 unless the run that stands ended well. For `curl -f`.",
    )
    max_age: str | None = Field(None, description="With assert: how old that run may be, such as 24h.")


@router.get(
    "/probe/{name}",
    response_model=schema_probe.Probe,
    summary="The last run of a probe: /probe/allreduce",
    responses={
        202: {"model": schema_probe.Probe, "description": "No run yet; `next_run` says when."},
        404: {"description": "No such probe; `probes` names those that there are."},
        503: {"description": "What was asserted is not true."},
    },
)
async def last(request: Request, name: Name, wanted: Annotated[Assertion, Query()]) -> Response:
    """The last result and its age. Starts nothing. Only the all-reduce is scheduled and has metrics."""
    probe = parameters.probe(name)
    report, now = sources(request).latest(), stamp(request)
    answer = document.probe(report, now, probe.name)
    max_age = None if wanted.max_age is None else parameters.duration("max_age", wanted.max_age)
    if wanted.asserted:
        _assert_ok(report.probe, now, max_age, answer)
    elif max_age is not None:
        raise Problem(400, "Invalid parameter", "max_age alone asserts nothing.", "Add assert=ok.")
    if answer["last"] is None:
        return reply(answer, 202, _retry(report.probe, now) if probe.name == ALL_REDUCE else {})
    return reply(answer)


@router.post(
    "/probe/{name}",
    status_code=202,
    response_model=schema_probe.ProbeStarted,
    summary="Run a probe now",
    responses={
        401: {"description": "No token, or a wrong one."},
        403: {"description": "A page of another origin asked."},
        404: {"description": "No such probe; `probes` names those that there are."},
        409: {"description": "The guard refuses: `reason` and `remedy` say why and what to do."},
        503: {"description": "The main loop does not answer, or the agent has no token to compare with."},
    },
    openapi_extra={"security": [{"token": []}]},
)
async def run(request: Request, name: Name, _: Nothing) -> Response:
    """Needs the token. Location names the run. While one is in progress no second is started: the request joins it.

    A run of another probe cannot be joined: then the answer is 409, and nothing is recorded.
    """
    authorize(request)
    return _answered(await awaited(sources(request).request_probe(parameters.probe(name).name), PATIENCE))


def refused(answer: ProbeRequest, headers: Mapping[str, str]) -> Problem:
    detail, remedy = f"The probe may not run now: {answer.reason}.", answer.hint or "Ask again later."
    return Problem(409, "Probe refused", detail, remedy, headers=headers, reason=answer.reason, id=answer.id)


def not_so(reason: str, answer: document.Document) -> Problem:
    """What was asserted is not true."""
    remedy = "See `probe`, and run one with POST /probe/{0} or `gpumon probe {0}`.".format(answer["probe"])
    return Problem(503, "Assertion failed", reason, remedy, probe=answer)


def _answered(answer: ProbeRequest) -> Response:
    headers = {"Location": f"/api/v1/probes/{answer.id}"} if answer.id else {}
    if answer.reason:
        raise refused(answer, headers)
    return reply({"id": answer.id, "accepted": answer.accepted}, 202, headers | {"Retry-After": "1"})


def _assert_ok(state: ProbeState, now: document.Stamp, max_age: float | None, answer: document.Document) -> None:
    probe = answer["probe"]
    reason = _why_not(standing(state.ran, probe), unanswered(state, probe), now, max_age)
    if reason:
        raise not_so(reason, answer)


def _why_not(result: ProbeResult | None, later: str, now: document.Stamp, max_age: float | None) -> str:
    if result is None:
        return NOTHING_YET
    age = document.age(result, now)
    ended = f"Run {result.id} ended {result.outcome} {duration(age)} ago"
    if result.outcome != "ok":
        return " ".join(filter(None, (f"{ended}{': ' + result.reason if result.reason else ''}.", later)))
    if max_age is not None and age > max_age:
        return f"{ended}, which is longer than {duration(max_age)}."
    return ""


def _retry(state: ProbeState, now: document.Stamp) -> dict[str, str]:
    return {} if state.next_run is None else {"Retry-After": str(max(1, math.ceil(state.next_run - now.wall)))}
