"""/api/v1/maintenance: a while in which nothing pages. Reading is for everyone, changing for who has the token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response

from gpumon.model.release import Answer
from gpumon.model.time_window import LONGEST_REASON
from gpumon.outputs.document import Document
from gpumon.outputs.maintenance import maintenance
from gpumon.server import schema_release
from gpumon.server.api import Filter, Nothing
from gpumon.server.guard import authorize
from gpumon.server.problem import Problem
from gpumon.server.release import PATIENCE, by
from gpumon.server.responses import awaited, reply, sources

router = APIRouter(prefix="/api/v1", tags=["maintenance"])

REFUSALS: Mapping[int | str, dict[str, str]] = {
    401: {"description": "No token, or a wrong one."},
    403: {"description": "A page of another origin asked."},
    503: {"description": "The main loop does not answer, or the agent has no token to compare with."},
}


class Wanted(Filter):
    for_seconds: float = Field(gt=0, allow_inf_nan=False, description="How long; maintenance.max_seconds bounds it.")
    reason: str = Field(description=f"Why: everybody may read it. At most {LONGEST_REASON} characters.")


@router.get(
    "/maintenance", response_model=schema_release.MaintenanceState, summary="Whether the node is in maintenance"
)
async def state(request: Request, _: Nothing) -> Response:
    """While it is, no alert pages; what is judged goes on being judged and recorded."""
    return reply(_document(request))


@router.post(
    "/maintenance",
    response_model=schema_release.MaintenanceChanged,
    summary="Begin a maintenance",
    responses={**REFUSALS, 400: {"description": "Longer than is allowed, or without a reason."}},
    openapi_extra={"security": [{"token": []}]},
)
async def begin(request: Request, wanted: Annotated[Wanted, Query()]) -> Response:
    """Needs the token. Takes the place of the one in force. Answers when it is on record, or cannot be."""
    authorize(request)
    asked = sources(request).request_maintenance(wanted.for_seconds, wanted.reason, by(request))
    answer = await awaited(asked, PATIENCE)
    if answer.refused:
        raise refused(answer)
    return reply(_document(request) | {"stored": answer.stored})


@router.delete(
    "/maintenance",
    response_model=schema_release.MaintenanceChanged,
    summary="End the maintenance",
    responses={**REFUSALS},
    openapi_extra={"security": [{"token": []}]},
)
async def end(request: Request, _: Nothing) -> Response:
    """Needs the token. What is still wrong pages from now on."""
    authorize(request)
    answer = await awaited(sources(request).end_maintenance(), PATIENCE)
    if answer.refused:
        raise refused(answer)
    return reply(_document(request) | {"stored": answer.stored})


def refused(answer: Answer) -> Problem:
    return Problem(400, "Maintenance refused", answer.refused, answer.remedy)


def _document(request: Request) -> Document:
    return {"maintenance": maintenance(sources(request).latest())}
