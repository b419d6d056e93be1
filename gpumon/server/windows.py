"""Routes /api/v1/windows: time windows of every kind (release, hold and maintenance)."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import Field

from gpumon.model.time_window import MARKER, WindowKind, WindowSelection, in_force
from gpumon.outputs.responses.windows import WindowsChangeResponse, WindowsResponse
from gpumon.server.context import Filter, NoParameters, host_time, sources
from gpumon.server.guard import TOKEN_ERRORS, needs_token
from gpumon.server.problem import Problem, errors
from gpumon.server.window_requests import (
    MISSING_GPU,
    STILL_OPEN_TEXT,
    Gpu,
    Owner,
    Reason,
    Seconds,
    check_complete,
    client,
    end,
    marker_present,
    start,
)

router = APIRouter(prefix="/api/v1", tags=["windows"])


class KindFilter(Filter):
    kind: WindowKind | None = Field(None, description="Only windows of this kind.")


class StartParameters(Filter):
    kind: WindowKind = Field(description="release: close the driver. hold: run no probe. maintenance: no alert pages.")
    for_seconds: Seconds
    gpu: Gpu = None
    owner: Owner = ""
    reason: Reason = ""


@router.get("/windows", summary="Time windows in force")
async def windows(request: Request, chosen: Annotated[KindFilter, Query()]) -> WindowsResponse:
    """List the time windows in force: releases (driver closed), holds (no probe runs), maintenance (no alert pages)."""
    return WindowsResponse.from_report(sources(request).latest(), host_time(request), chosen.kind)


@router.post(
    "/windows",
    summary="Start a time window",
    dependencies=[needs_token],
    responses=errors(
        {
            **TOKEN_ERRORS,
            400: "Longer than is allowed, without a reason, or of one GPU although it applies to the node.",
            404: MISSING_GPU,
            409: STILL_OPEN_TEXT,
        }
    ),
)
async def start_window(request: Request, chosen: Annotated[StartParameters, Query()]) -> WindowsChangeResponse:
    """Start a time window, which replaces a client's window in force with the same kind, GPU and owner.

    The answer is sent when the effect of the window is complete, or 409 if it cannot be completed in time.
    """
    kind = chosen.kind
    if chosen.gpu is not None and kind is not WindowKind.RELEASE:
        raise Problem(400, "Invalid scope", f"A {kind} applies to the whole node.", "Leave out `gpu`.")
    result = await start(request, kind, chosen.for_seconds, gpu=chosen.gpu, owner=chosen.owner, reason=chosen.reason)
    after = WindowsChangeResponse(**_windows(request), stored=result.stored)
    check_complete(kind, result, after.document())
    return after


@router.delete(
    "/windows/{id}",
    summary="End a time window",
    dependencies=[needs_token],
    responses=errors(
        {**TOKEN_ERRORS, 400: "The agent is stopping.", 404: "No such window.", 409: "The marker file requests it."}
    ),
)
async def end_window(request: Request, id: str, _: NoParameters) -> WindowsChangeResponse:  # noqa: A002 - its name in the API
    """End a time window. A window that the marker file started ends only when that file is deleted."""
    window = next((window for window in in_force(sources(request).latest().windows) if window.id == id), None)
    if window is None:
        raise Problem(404, "Unknown window", f"There is no window {id!r} in force.", "See GET /api/v1/windows.")
    if window.by == MARKER:
        raise marker_present({})
    result = await end(request, WindowSelection(id=id, by=client(request)))
    return WindowsChangeResponse(**_windows(request), stored=result.stored)


def _windows(request: Request) -> dict[str, Any]:
    return dict(WindowsResponse.from_report(sources(request).latest(), host_time(request)))
