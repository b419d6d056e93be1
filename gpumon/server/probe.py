"""Routes /probe/NAME: GET returns the last result of a probe, POST starts a run."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import Field

from gpumon.outputs.formatting import duration
from gpumon.outputs.probe_text import partial_run_note
from gpumon.outputs.responses.base import HostTime
from gpumon.outputs.responses.probes import ProbeRequestResponse, ProbeResponse, age_seconds
from gpumon.probe.core.probes import PROBES
from gpumon.probe.core.result import ProbeResult, current_result
from gpumon.probe.core.state import ProbeState
from gpumon.server import parameters
from gpumon.server.context import AuditedFilter, Filter, host_time, main_loop_answer, sources
from gpumon.server.guard import TOKEN_ERRORS, needs_token
from gpumon.server.problem import Problem, errors

router = APIRouter(tags=["probe"])

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
    probe = parameters.probe(name)
    report, now = sources(request).latest(), host_time(request)
    answer = ProbeResponse.from_report(report, now, probe.name)
    max_age = None if wanted.max_age is None else parameters.duration("max_age", wanted.max_age)
    if wanted.asserted:
        _assert_ok(report.probe, now, max_age, answer)
    elif max_age is not None:
        raise Problem(400, "Invalid parameter", "max_age needs assert.", "Add assert=ok.")
    if answer.last is None:
        response.status_code = 202
        response.headers.update(_retry_after(report.probe.next_runs.get(probe.name), now))
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
    probe = parameters.probe(name)
    answer = await main_loop_answer(sources(request).request_probe(probe.name), TIMEOUT_SECONDS)
    location = {"Location": f"/api/v1/probes/{answer.id}"} if answer.id else {}
    if answer.reason:
        detail, remedy = f"The probe may not run now: {answer.reason}.", answer.hint or "Retry later."
        raise Problem(409, "Probe refused", detail, remedy, headers=location, reason=answer.reason, id=answer.id)
    response.headers.update(location | {"Retry-After": "1"})
    return ProbeRequestResponse.model_validate(answer)


def _assert_ok(state: ProbeState, now: HostTime, max_age: float | None, answer: ProbeResponse) -> None:
    """Raise a Problem unless the run that determines the probe's state is ok and at most `max_age` seconds old."""
    probe = answer.probe
    reason = _failed_assertion(current_result(state.ran, probe), partial_run_note(state, probe), now, max_age)
    if reason:
        remedy = f"See `probe`. Start a run with POST /probe/{probe} or `gpumon probe {probe}`."
        raise Problem(503, "Assertion failed", reason, remedy, probe=answer.document())


def _failed_assertion(result: ProbeResult | None, partial: str, now: HostTime, max_age: float | None) -> str:
    """Return a sentence on why the assertion failed: no run, a run that is not ok, or one older than `max_age` seconds.

    Return an empty string if the assertion holds. `partial` is a note on a newer run with fewer GPUs, or empty.
    """
    if result is None:
        return NO_RUN
    age = age_seconds(result, now)
    ended = f"Run {result.id} ended {result.outcome} {duration(age)} ago"
    if result.outcome != "ok":
        return " ".join(filter(None, (f"{ended}{': ' + result.reason if result.reason else ''}.", partial)))
    if max_age is not None and age > max_age:
        return f"{ended}, which is longer than {duration(max_age)}."
    return ""


def _retry_after(next_run: float | None, now: HostTime) -> dict[str, str]:
    return {} if next_run is None else {"Retry-After": str(max(1, math.ceil(next_run - now.wall)))}
