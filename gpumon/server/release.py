"""/api/v1/release: letting go of GPUs for a while. Reading is for everyone, changing for who has the token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response

from gpumon.model.bus_id import parsed
from gpumon.model.release import NODE, Answer
from gpumon.outputs import document
from gpumon.server import parameters, schema_release
from gpumon.server.api import Filter, Nothing
from gpumon.server.guard import authorize, is_authorized
from gpumon.server.problem import Problem
from gpumon.server.responses import awaited, reply, sources, stamp

router = APIRouter(prefix="/api/v1", tags=["release"])

PATIENCE = 20.0
"""Seconds for the main loop to say what becomes of a request: longer than it waits for what is held."""
COMMAND = "gpumon/"
"""Begins the User-Agent of our own command line."""
REFUSALS: Mapping[int | str, dict[str, str]] = {
    401: {"description": "No token, or a wrong one."},
    403: {"description": "A page of another origin asked."},
    404: {"description": "No such GPU; `gpus` names those that exist."},
    503: {"description": "The main loop does not answer, or the agent has no token to compare with."},
}
GPU = Field(None, description="Only this GPU: uuid, index or PCI address. Without it the whole node.")


class Wanted(Filter):
    for_seconds: float = Field(gt=0, allow_inf_nan=False, description="How long; release.max_seconds bounds it.")
    gpu: str | None = GPU


class Ended(Filter):
    gpu: str | None = GPU


@router.get("/release", response_model=schema_release.Release, summary="What the agent keeps off now")
async def state(request: Request, _: Nothing) -> Response:
    """With the token, processes of the agent that still hold a GPU are named too."""
    return reply(_document(request))


@router.post(
    "/release",
    response_model=schema_release.Release,
    summary="Let go of the GPUs",
    responses={
        **REFUSALS,
        400: {"description": "Longer than is allowed."},
        409: {"description": "A process of the agent still holds a GPU: `holders` names it. The release stands."},
    },
    openapi_extra={"security": [{"token": []}]},
)
async def begin(request: Request, wanted: Annotated[Wanted, Query()]) -> Response:
    """Needs the token. Answers when no process of the agent holds the GPU any more; asked again, it begins anew."""
    authorize(request)
    asked = sources(request).request_release(_bus_id(request, wanted.gpu), wanted.for_seconds, by(request))
    answer = await awaited(asked, PATIENCE)
    if answer.refused:
        raise refused(answer)
    if answer.holders:
        raise held(answer, _document(request))
    return reply(_document(request))


@router.delete(
    "/release",
    response_model=schema_release.Release,
    summary="Take the GPUs up again",
    responses={**REFUSALS, 409: {"description": "The marker file still asks for it."}},
    openapi_extra={"security": [{"token": []}]},
)
async def end(request: Request, wanted: Annotated[Ended, Query()]) -> Response:
    """Needs the token. Without a GPU it ends all releases but that of the marker file, which ends with the file."""
    authorize(request)
    bus_id = None if wanted.gpu is None else _ending(request, wanted.gpu)
    answer = await awaited(sources(request).end_release(bus_id, by(request)), PATIENCE)
    if answer.refused:
        raise refused(answer)
    after = _document(request)
    if any(window["by"] == "marker" for window in after["windows"]):
        raise marked(after)
    return reply(after)


def refused(answer: Answer) -> Problem:
    return Problem(400, "Release refused", answer.refused, answer.remedy)


def held(answer: Answer, after: document.Document) -> Problem:
    """Who asked must not go on: a reset would fail, or hang."""
    words = "; ".join(one.words for one in answer.holders)
    stuck = any(one.stuck for one in answer.holders)
    remedy = "SIGKILL does not end it: it sits in the driver. Reboot the node." if stuck else "Ask again in a while."
    return Problem(409, "Still held", f"Still held by {words}.", remedy, holders=holders(answer), release=after)


def marked(after: document.Document) -> Problem:
    detail = "The marker file is still there, so the GPUs it names stay released."
    return Problem(409, "Marker present", detail, "Delete the file that release.marker names.", release=after)


def holders(answer: Answer) -> list[document.Document]:
    """What is not let go."""
    return [{"pid": one.pid, "what": one.words, "stuck": one.stuck} for one in answer.holders]


def _document(request: Request) -> document.Document:
    report = sources(request).latest()
    shown = document.release(report, stamp(request))
    return shown | ({"holders": [one.words for one in report.release.holders]} if is_authorized(request) else {})


def _bus_id(request: Request, gpu: str | None) -> str:
    return NODE if gpu is None else parameters.gpu(sources(request).latest(), gpu).bus_id


def _ending(request: Request, gpu: str) -> str:
    """A GPU that was given to another driver meanwhile is known by its address alone."""
    address = parsed(gpu)
    released = address is not None and address in sources(request).latest().release.bus_ids
    return address if released and address else _bus_id(request, gpu)


def by(request: Request) -> str:
    """Who asks."""
    return "command" if request.headers.get("user-agent", "").startswith(COMMAND) else "api"
