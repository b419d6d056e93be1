"""/api/v1/release: letting go of GPUs for a while. Reading is for everyone, changing for who has the token."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import Field

from gpumon.model.bus_id import parsed
from gpumon.model.release import NODE, Answer
from gpumon.outputs.responses.windows import ReleaseResponse
from gpumon.server import parameters
from gpumon.server.context import Filter, NoParameters, host_time, main_loop_answer, sources
from gpumon.server.guard import TOKEN_ERRORS, is_authorized, needs_token
from gpumon.server.problem import Problem, errors

router = APIRouter(prefix="/api/v1", tags=["release"])

TIMEOUT_SECONDS = 20.0
"""For the main loop: longer than it waits for the holders of a GPU."""
COMMAND_USER_AGENT = "gpumon/"
"""Prefix of the User-Agent of the gpumon command."""
_NO_SUCH_GPU = "No such GPU; `gpus` lists those that exist."
GPU = Field(None, description="Only this GPU: uuid, index or PCI address. Without it the whole node.")


class Wanted(Filter):
    for_seconds: float = Field(gt=0, allow_inf_nan=False, description="How long; release.max_seconds bounds it.")
    gpu: str | None = GPU


class Ended(Filter):
    gpu: str | None = GPU


@router.get("/release", response_model_exclude_unset=True, summary="Releases that are active")
async def state(request: Request, _: NoParameters) -> ReleaseResponse:
    """With the token, processes of the agent that still hold a GPU are listed too."""
    return _response(request)


@router.post(
    "/release",
    response_model_exclude_unset=True,
    summary="Release GPUs",
    dependencies=[needs_token],
    responses=errors(
        {
            **TOKEN_ERRORS,
            400: "Longer than is allowed.",
            404: _NO_SUCH_GPU,
            409: "A process of the agent still holds a GPU: `holders` lists it. The release is active.",
        }
    ),
)
async def begin(request: Request, wanted: Annotated[Wanted, Query()]) -> ReleaseResponse:
    """Answers when no process of the agent holds the GPU. A repeated request starts the release again."""
    asked = sources(request).request_release(_bus_id(request, wanted.gpu), wanted.for_seconds, by(request))
    answer = await main_loop_answer(asked, TIMEOUT_SECONDS)
    if answer.refused:
        raise Problem(400, "Release refused", answer.refused, answer.remedy)
    if answer.holders:
        raise _still_held(answer, _response(request))
    return _response(request)


@router.delete(
    "/release",
    response_model_exclude_unset=True,
    summary="End a release",
    dependencies=[needs_token],
    responses=errors({**TOKEN_ERRORS, 404: _NO_SUCH_GPU, 409: "The marker file still requests the release."}),
)
async def end(request: Request, wanted: Annotated[Ended, Query()]) -> ReleaseResponse:
    """Without a GPU, ends all releases except that of the marker file, which ends when the file is deleted."""
    bus_id = None if wanted.gpu is None else _released_bus_id(request, wanted.gpu)
    answer = await main_loop_answer(sources(request).end_release(bus_id, by(request)), TIMEOUT_SECONDS)
    if answer.refused:
        raise Problem(400, "Release refused", answer.refused, answer.remedy)
    after = _response(request)
    if any(window.by == "marker" for window in after.windows):
        detail, remedy = "The marker file still exists.", "Delete the file that release.marker names."
        raise Problem(409, "Marker present", detail, remedy, release=_json(after))
    return after


def _still_held(answer: Answer, after: ReleaseResponse) -> Problem:
    """Return the error for a client that must not reset the GPU yet: the reset would fail or hang."""
    words = "; ".join(one.words for one in answer.holders)
    stuck = any(one.stuck for one in answer.holders)
    remedy = "SIGKILL does not end it: it is blocked in the driver. Reboot the node." if stuck else "Retry later."
    return Problem(409, "Still held", f"Still held by {words}.", remedy, holders=holders(answer), release=_json(after))


def holders(answer: Answer) -> list[dict[str, Any]]:
    """Return the processes that still hold a GPU."""
    return [{"pid": one.pid, "what": one.words, "stuck": one.stuck} for one in answer.holders]


def _response(request: Request) -> ReleaseResponse:
    report = sources(request).latest()
    response = ReleaseResponse.from_report(report, host_time(request))
    names = [one.words for one in report.release.holders]
    return response.model_copy(update={"holders": names}) if is_authorized(request) else response


def _json(response: ReleaseResponse) -> dict[str, Any]:
    return response.model_dump(mode="json", exclude_unset=True)


def _bus_id(request: Request, gpu: str | None) -> str:
    return NODE if gpu is None else parameters.gpu(sources(request).latest(), gpu).bus_id


def _released_bus_id(request: Request, gpu: str) -> str:
    """Return the address of a GPU. A GPU that is bound to another driver now is found by its address alone."""
    address = parsed(gpu)
    released = address is not None and address in sources(request).latest().release.bus_ids
    return address if released and address else _bus_id(request, gpu)


def by(request: Request) -> str:
    """Return which client sent the request: the gpumon command, or another."""
    return "command" if request.headers.get("user-agent", "").startswith(COMMAND_USER_AGENT) else "api"
