"""/api/v1/maintenance: a while in which nothing pages. Reading is for everyone, changing for who has the token."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import Field

from gpumon.model.release import Answer
from gpumon.model.time_window import LONGEST_REASON
from gpumon.outputs.responses.windows import (
    MaintenanceChangeResponse,
    MaintenanceResponse,
    MaintenanceStateResponse,
)
from gpumon.server.context import Filter, NoParameters, main_loop_answer, sources
from gpumon.server.guard import TOKEN_ERRORS, needs_token
from gpumon.server.problem import Problem, errors
from gpumon.server.release import TIMEOUT_SECONDS, by

router = APIRouter(prefix="/api/v1", tags=["maintenance"])


class Wanted(Filter):
    for_seconds: float = Field(gt=0, allow_inf_nan=False, description="How long; maintenance.max_seconds bounds it.")
    reason: str = Field(description=f"Why: everybody may read it. At most {LONGEST_REASON} characters.")


@router.get("/maintenance", summary="Whether the node is in maintenance")
async def state(request: Request, _: NoParameters) -> MaintenanceStateResponse:
    """During maintenance no alert pages; checks run and verdicts are recorded as usual."""
    return MaintenanceStateResponse(maintenance=MaintenanceResponse.from_report(sources(request).latest()))


@router.post(
    "/maintenance",
    summary="Begin a maintenance",
    dependencies=[needs_token],
    responses=errors({**TOKEN_ERRORS, 400: "Longer than is allowed, or without a reason."}),
)
async def begin(request: Request, wanted: Annotated[Wanted, Query()]) -> MaintenanceChangeResponse:
    """It replaces the active maintenance window."""
    asked = sources(request).request_maintenance(wanted.for_seconds, wanted.reason, by(request))
    return _changed(request, await main_loop_answer(asked, TIMEOUT_SECONDS))


@router.delete(
    "/maintenance", summary="End the maintenance", dependencies=[needs_token], responses=errors(TOKEN_ERRORS)
)
async def end(request: Request, _: NoParameters) -> MaintenanceChangeResponse:
    """Alerts that are still firing page from now on."""
    return _changed(request, await main_loop_answer(sources(request).end_maintenance(), TIMEOUT_SECONDS))


def _changed(request: Request, answer: Answer) -> MaintenanceChangeResponse:
    if answer.refused:
        raise Problem(400, "Maintenance refused", answer.refused, answer.remedy)
    maintenance = MaintenanceResponse.from_report(sources(request).latest())
    return MaintenanceChangeResponse(maintenance=maintenance, stored=answer.stored)
