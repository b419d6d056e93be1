"""/api/v1/probes/hold: a while in which no probe runs. Reading is for everyone, changing for who has the token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response

from gpumon.model.hold import LONGEST_OWNER
from gpumon.model.release import Answer
from gpumon.model.time_window import LONGEST_REASON
from gpumon.outputs.document import Document
from gpumon.outputs.hold import hold
from gpumon.server import schema_probe as schema
from gpumon.server.api import Filter, Nothing
from gpumon.server.guard import authorize
from gpumon.server.problem import Problem
from gpumon.server.release import PATIENCE, by, holders
from gpumon.server.responses import awaited, reply, sources

router = APIRouter(prefix="/api/v1/probes", tags=["probe"])

REFUSALS: Mapping[int | str, dict[str, str]] = {
    401: {"description": "No token, or a wrong one."},
    403: {"description": "A page of another origin asked."},
    503: {"description": "The main loop does not answer, or the agent has no token to compare with."},
}
_WHOSE = f"For whom, such as the number of a job: each has one hold. At most {LONGEST_OWNER} characters."


class Wanted(Filter):
    for_seconds: float = Field(gt=0, allow_inf_nan=False, description="How long; probe.hold_max_seconds bounds it.")
    reason: str = Field("", description=f"Why: everybody may read it. At most {LONGEST_REASON} characters.")
    owner: str = Field("", description=_WHOSE)


class Ended(Filter):
    owner: str = Field("", description="Whose hold. Without it, that of nobody in particular.")


@router.get("/hold", response_model=schema.HoldState, summary="Who keeps probes away now")
async def state(request: Request, _: Nothing) -> Response:
    """While somebody does, no run begins, by schedule or by request."""
    return reply(_document(request))


@router.post(
    "/hold",
    response_model=schema.HoldChanged,
    summary="Keep probes away",
    responses={
        **REFUSALS,
        400: {"description": "Longer than is allowed, or with words that cannot be shown."},
        409: {
            "description": "Something of a run is left on a GPU: `holders` names it; where it names nothing, nobody "
            "has looked yet. The hold stands."
        },
    },
    openapi_extra={"security": [{"token": []}]},
)
async def begin(request: Request, wanted: Annotated[Wanted, Query()]) -> Response:
    """Needs the token. Ends the run in progress, and answers within 3 s, when nothing of it is on a GPU any more.

    Takes the place of the hold that this owner has.
    """
    authorize(request)
    asked = sources(request).request_hold(wanted.for_seconds, wanted.reason, wanted.owner, by(request))
    answer = await awaited(asked, PATIENCE)
    if answer.refused:
        raise refused(answer)
    if answer.holders or answer.unseen:
        raise not_free(answer, _document(request))
    return reply(_document(request) | {"stored": answer.stored})


@router.delete(
    "/hold",
    response_model=schema.HoldChanged,
    summary="End a hold",
    responses={**REFUSALS, 400: {"description": "The agent is stopping."}},
    openapi_extra={"security": [{"token": []}]},
)
async def end(request: Request, wanted: Annotated[Ended, Query()]) -> Response:
    """Needs the token. Probes may run again when nobody else holds."""
    authorize(request)
    answer = await awaited(sources(request).end_hold(wanted.owner), PATIENCE)
    if answer.refused:
        raise refused(answer)
    return reply(_document(request) | {"stored": answer.stored})


def refused(answer: Answer) -> Problem:
    return Problem(400, "Hold refused", answer.refused, answer.remedy)


def not_free(answer: Answer, after: Document) -> Problem:
    """Who asked must not use the GPUs yet."""
    words = "; ".join(one.words for one in answer.holders)
    stuck = any(one.stuck for one in answer.holders)
    remedy = "SIGKILL does not end it: it sits in the driver. Reboot the node." if stuck else "Ask again in a while."
    detail = f"No run begins, but of one that was ended there is still: {words}." if words else answer.unseen
    return Problem(409, "Not free", detail, remedy, holders=holders(answer), **after)


def _document(request: Request) -> Document:
    return {"hold": hold(sources(request).latest())}
