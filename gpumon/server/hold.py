"""/api/v1/probes/hold: a while in which no probe runs. Reading is for everyone, changing for who has the token."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import Field

from gpumon.model.hold import LONGEST_OWNER
from gpumon.model.release import Answer
from gpumon.model.time_window import LONGEST_REASON
from gpumon.outputs.responses.windows import HoldChangeResponse, HoldResponse, HoldStateResponse
from gpumon.server.context import Filter, NoParameters, main_loop_answer, sources
from gpumon.server.guard import TOKEN_ERRORS, needs_token
from gpumon.server.problem import Problem, errors
from gpumon.server.release import TIMEOUT_SECONDS, by, holders

router = APIRouter(prefix="/api/v1/probes", tags=["probe"])

_WHOSE = f"For whom, such as the number of a job: each has one hold. At most {LONGEST_OWNER} characters."


class Wanted(Filter):
    for_seconds: float = Field(gt=0, allow_inf_nan=False, description="How long; probe.max_hold_seconds bounds it.")
    reason: str = Field("", description=f"Why: everybody may read it. At most {LONGEST_REASON} characters.")
    owner: str = Field("", description=_WHOSE)


class Ended(Filter):
    owner: str = Field("", description="Whose hold. Without it, that of nobody in particular.")


@router.get("/hold", summary="Holds that are active")
async def state(request: Request, _: NoParameters) -> HoldStateResponse:
    """While a hold is active, no run begins, neither by schedule nor by request."""
    return HoldStateResponse(hold=HoldResponse.from_report(sources(request).latest()))


@router.post(
    "/hold",
    summary="Hold probes",
    dependencies=[needs_token],
    responses=errors(
        {
            **TOKEN_ERRORS,
            400: "Longer than is allowed, or a text with unprintable characters.",
            409: "A process of a run is still on a GPU: `holders` lists it, or is empty if the GPUs have not been "
            "checked yet. The hold is active.",
        }
    ),
)
async def begin(request: Request, wanted: Annotated[Wanted, Query()]) -> HoldChangeResponse:
    """Ends the run in progress, and answers within 3 s, when no process of it is on a GPU.

    It replaces the previous hold of the same owner.
    """
    asked = sources(request).request_hold(wanted.for_seconds, wanted.reason, wanted.owner, by(request))
    answer = await main_loop_answer(asked, TIMEOUT_SECONDS)
    if answer.refused:
        raise _refused(answer)
    if answer.holders or answer.unseen:
        raise _not_free(answer, HoldResponse.from_report(sources(request).latest()))
    return _changed(request, answer)


@router.delete(
    "/hold",
    summary="End a hold",
    dependencies=[needs_token],
    responses=errors({**TOKEN_ERRORS, 400: "The agent is stopping."}),
)
async def end(request: Request, wanted: Annotated[Ended, Query()]) -> HoldChangeResponse:
    """Probes may run again when no other hold is active."""
    answer = await main_loop_answer(sources(request).end_hold(wanted.owner), TIMEOUT_SECONDS)
    if answer.refused:
        raise _refused(answer)
    return _changed(request, answer)


def _changed(request: Request, answer: Answer) -> HoldChangeResponse:
    return HoldChangeResponse(hold=HoldResponse.from_report(sources(request).latest()), stored=answer.stored)


def _refused(answer: Answer) -> Problem:
    return Problem(400, "Hold refused", answer.refused, answer.remedy)


def _not_free(answer: Answer, hold: HoldResponse | None) -> Problem:
    """Return the error for a client that must not use the GPUs yet."""
    words = "; ".join(one.words for one in answer.holders)
    stuck = any(one.stuck for one in answer.holders)
    remedy = "SIGKILL does not end it: it is blocked in the driver. Reboot the node." if stuck else "Retry later."
    detail = f"No run begins, but a run that was ended still has: {words}." if words else answer.unseen
    document = None if hold is None else hold.document()
    return Problem(409, "Not free", detail, remedy, holders=holders(answer), hold=document)
