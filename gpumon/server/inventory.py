"""/api/v1/inventory: every GPU and port that should be here; with the token, what is here becomes what should be."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response

from gpumon.model.release import Answer
from gpumon.outputs.inventory import inventory
from gpumon.server import schema_inventory as schema
from gpumon.server.api import Filter, Nothing
from gpumon.server.guard import authorize
from gpumon.server.problem import Problem
from gpumon.server.responses import awaited, reply, sources

router = APIRouter(prefix="/api/v1", tags=["node"])

PATIENCE = 20.0
"""Seconds for the main loop to say what becomes of a request: longer than it waits for the store."""


class Which(Filter):
    part: list[str] = Field(
        [],
        max_length=1024,
        description="Only this GPU (uuid or PCI address) or port (`mlx5_3/1`, or GUID/1), which is missing, down or "
        "slower than before. May be given more than once; without it all that are.",
    )


@router.get("/inventory", response_model=schema.Inventory, summary="Every GPU and every port that should be here")
async def state(request: Request, _: Nothing) -> Response:
    """A GPU that is missing stays in it, over restarts and reboots, until it is back, replaced or accepted as gone."""
    return reply(inventory(sources(request).latest()))


@router.post(
    "/inventory/accept",
    response_model=schema.Inventory,
    summary="Accept what is here",
    responses={
        401: {"description": "No token, or a wrong one."},
        403: {"description": "A page of another origin asked."},
        409: {"description": "Nobody can count the GPUs now, a part is not missed, or it cannot be stored."},
        503: {"description": "The main loop does not answer, or the agent has no token to compare with."},
    },
    openapi_extra={"security": [{"token": []}]},
)
async def accept(request: Request, which: Annotated[Which, Query()]) -> Response:
    """Needs the token. What is missing, and a port that is down, is expected no more, and its verdicts go.

    One that comes back is expected.
    """
    authorize(request)
    answer = await awaited(sources(request).accept_inventory(which.part), PATIENCE)
    if answer.refused:
        raise refused(answer)
    return reply(inventory(sources(request).latest()))


def refused(answer: Answer) -> Problem:
    return Problem(409, "Not accepted", answer.refused, answer.remedy)
