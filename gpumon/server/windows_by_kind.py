"""Routes for time windows of one kind: /api/v1/release, /api/v1/maintenance and /api/v1/probes/hold."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import Field

from gpumon.model.bus_id import parse_bus_id
from gpumon.model.request import RequestResult
from gpumon.model.time_window import MARKER, WindowKind, WindowSelection, released_scopes
from gpumon.outputs.responses.windows import (
    HoldChangeResponse,
    HoldResponse,
    HoldStateResponse,
    MaintenanceChangeResponse,
    MaintenanceResponse,
    MaintenanceStateResponse,
    ReleaseResponse,
)
from gpumon.server import parameters
from gpumon.server.context import AuditedFilter, Filter, NoParameters, host_time, sources
from gpumon.server.guard import TOKEN_ERRORS, is_authorized, needs_token
from gpumon.server.problem import errors
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


class ReleaseParameters(AuditedFilter):
    for_seconds: Seconds
    gpu: Gpu = None


class GpuFilter(AuditedFilter):
    gpu: Gpu = None


class MaintenanceParameters(Filter):
    for_seconds: Seconds
    reason: Reason


class HoldParameters(Filter):
    for_seconds: Seconds
    reason: Reason = ""
    owner: Owner = ""


class OwnerFilter(AuditedFilter):
    owner: str = Field("", description="The owner of the hold. Without it, the hold that has none.")


# Releases


@router.get("/release", response_model_exclude_unset=True, summary="Releases in force")
async def releases(request: Request, _: NoParameters) -> ReleaseResponse:
    """List the releases. With the token, also list the processes of the agent that still have a released GPU open."""
    return _releases(request)


@router.post(
    "/release",
    response_model_exclude_unset=True,
    summary="Release GPUs",
    dependencies=[needs_token],
    responses=errors({**TOKEN_ERRORS, 400: "Longer than is allowed.", 404: MISSING_GPU, 409: STILL_OPEN_TEXT}),
)
async def start_release(request: Request, chosen: Annotated[ReleaseParameters, Query()]) -> ReleaseResponse:
    """Release one GPU or all. This replaces an earlier release of that GPU, or of all, that has no owner.

    The answer is sent when no process of the agent has a released GPU open, or 409 if that takes too long.
    """
    result = await start(request, WindowKind.RELEASE, chosen.for_seconds, gpu=chosen.gpu)
    after = _releases(request)
    check_complete(WindowKind.RELEASE, result, {"release": after.model_dump(mode="json", exclude_unset=True)})
    return after


@router.delete(
    "/release",
    response_model_exclude_unset=True,
    summary="End a release",
    dependencies=[needs_token],
    responses=errors(
        {
            **TOKEN_ERRORS,
            400: "The agent is stopping.",
            404: MISSING_GPU,
            409: "The marker file still requests the release.",
        }
    ),
)
async def end_release(request: Request, chosen: Annotated[GpuFilter, Query()]) -> ReleaseResponse:
    """End the releases of a GPU, or all. A release that the marker file started ends only when that file is deleted."""
    bus_id = None if chosen.gpu is None else _released_bus_id(request, chosen.gpu)
    await end(request, WindowSelection(kind=WindowKind.RELEASE, bus_id=bus_id, by=client(request)))
    after = _releases(request)
    left = (window for window in after.windows if bus_id is None or window.pci_bus_id in {None, bus_id})
    if any(window.by == MARKER for window in left):
        raise marker_present({"release": after.model_dump(mode="json", exclude_unset=True)})
    return after


# Maintenance


@router.get("/maintenance", summary="Whether the node is in maintenance")
async def maintenance(request: Request, _: NoParameters) -> MaintenanceStateResponse:
    """Return the maintenance in force. During it no alert pages, but checks run and verdicts are recorded as usual."""
    return MaintenanceStateResponse(maintenance=MaintenanceResponse.from_report(sources(request).latest()))


@router.post(
    "/maintenance",
    summary="Start maintenance",
    dependencies=[needs_token],
    responses=errors({**TOKEN_ERRORS, 400: "Longer than is allowed, or without a reason."}),
)
async def start_maintenance(
    request: Request, chosen: Annotated[MaintenanceParameters, Query()]
) -> MaintenanceChangeResponse:
    """Start a maintenance, which replaces the maintenance in force that has no owner."""
    result = await start(request, WindowKind.MAINTENANCE, chosen.for_seconds, reason=chosen.reason)
    return _maintenance(request, result)


@router.delete(
    "/maintenance",
    summary="End maintenance",
    dependencies=[needs_token],
    responses=errors({**TOKEN_ERRORS, 400: "The agent is stopping."}),
)
async def end_maintenance(request: Request, _: Annotated[AuditedFilter, Query()]) -> MaintenanceChangeResponse:
    """End all maintenance windows. Alerts whose faults are still active can page again."""
    result = await end(request, WindowSelection(kind=WindowKind.MAINTENANCE, by=client(request)))
    return _maintenance(request, result)


# Holds


@router.get("/probes/hold", summary="Holds in force")
async def holds(request: Request, _: NoParameters) -> HoldStateResponse:
    """List the holds in force. During a hold no probe run begins, neither by schedule nor by request."""
    return HoldStateResponse(hold=HoldResponse.from_report(sources(request).latest()))


@router.post(
    "/probes/hold",
    summary="Hold probes",
    dependencies=[needs_token],
    responses=errors(
        {**TOKEN_ERRORS, 400: "Longer than is allowed, or a text with unprintable characters.", 409: STILL_OPEN_TEXT}
    ),
)
async def start_hold(request: Request, chosen: Annotated[HoldParameters, Query()]) -> HoldChangeResponse:
    """Start a hold, which replaces the hold of the same owner.

    A run in progress is ended. The answer is sent when no process of the run has a GPU open, or 409 after about 3 s.
    """
    result = await start(request, WindowKind.HOLD, chosen.for_seconds, owner=chosen.owner, reason=chosen.reason)
    after = HoldChangeResponse(hold=HoldResponse.from_report(sources(request).latest()), stored=result.stored)
    check_complete(WindowKind.HOLD, result, {"hold": after.document()["hold"]})
    return after


@router.delete(
    "/probes/hold",
    summary="End a hold",
    dependencies=[needs_token],
    responses=errors({**TOKEN_ERRORS, 400: "The agent is stopping."}),
)
async def end_hold(request: Request, chosen: Annotated[OwnerFilter, Query()]) -> HoldChangeResponse:
    """End the hold of an owner. Probes run again when no other hold is in force."""
    selection = WindowSelection(kind=WindowKind.HOLD, owner=chosen.owner.strip(), by=client(request))
    result = await end(request, selection)
    return HoldChangeResponse(hold=HoldResponse.from_report(sources(request).latest()), stored=result.stored)


def _releases(request: Request) -> ReleaseResponse:
    report = sources(request).latest()
    response = ReleaseResponse.from_report(report, host_time(request))
    names = [holder.description for holder in report.inventory.release_holders]
    return response.model_copy(update={"holders": names}) if is_authorized(request) else response


def _maintenance(request: Request, result: RequestResult) -> MaintenanceChangeResponse:
    return MaintenanceChangeResponse(
        maintenance=MaintenanceResponse.from_report(sources(request).latest()), stored=result.stored
    )


def _released_bus_id(request: Request, gpu: str) -> str:
    """Return the PCI address of the GPU whose release is to end. `gpu` is its uuid, index or PCI address.

    For a GPU that was bound to another driver after its release began, only the PCI address is accepted.
    """
    address = parse_bus_id(gpu)
    if address is not None and address in released_scopes(sources(request).latest().windows):
        return address
    return parameters.gpu(sources(request).latest(), gpu).bus_id
