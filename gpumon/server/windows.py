"""/api/v1/windows: releases, holds and maintenances. The paths of each kind are thin entries into the same code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import Field

from gpumon.model.bus_id import parsed
from gpumon.model.request_result import RequestResult
from gpumon.model.time_window import (
    API,
    COMMAND,
    MARKER,
    MAX_OWNER_LENGTH,
    MAX_REASON_LENGTH,
    NODE,
    WindowKind,
    WindowRequest,
    WindowSelection,
    in_force,
    released,
)
from gpumon.outputs.responses.windows import (
    HoldChangeResponse,
    HoldResponse,
    HoldStateResponse,
    MaintenanceChangeResponse,
    MaintenanceResponse,
    MaintenanceStateResponse,
    ReleaseResponse,
    WindowsChangeResponse,
    WindowsResponse,
    holder_documents,
)
from gpumon.server import parameters
from gpumon.server.context import Filter, NoParameters, host_time, main_loop_answer, sources
from gpumon.server.guard import TOKEN_ERRORS, is_authorized, needs_token
from gpumon.server.problem import Problem, errors
from gpumon.state.report import Report

router = APIRouter(prefix="/api/v1", tags=["windows"])

TIMEOUT_SECONDS = 20.0
"""For the main loop: longer than it waits for a process to close a GPU."""
COMMAND_USER_AGENT = "gpumon/"
"""Prefix of the User-Agent of the gpumon command."""
STILL_OPEN: Mapping[WindowKind, tuple[str, str]] = {
    WindowKind.RELEASE: ("Still held", "Still held by {}."),
    WindowKind.HOLD: ("Not free", "No run begins, but a run that was ended still has: {}."),
}
"""Title and detail of the error while a process has a GPU open, by kind."""
_MISSING_GPU = "No such GPU; `gpus` lists those that exist."
_STILL_OPEN = "A process still has a GPU open, or it is unknown: `holders` lists it. The window is in force."

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False, description="Length; the configuration sets a maximum.")]
Gpu = Annotated[str | None, Field(description="Only this GPU: uuid, index or PCI address. Without it the whole node.")]
Owner = Annotated[
    str,
    Field(description=f"For example the id of a job; each has one window. At most {MAX_OWNER_LENGTH} characters."),
]
Reason = Annotated[str, Field(description=f"Every client can read it. At most {MAX_REASON_LENGTH} characters.")]


class KindFilter(Filter):
    kind: WindowKind | None = Field(None, description="Only windows of this kind.")


class StartParameters(Filter):
    kind: WindowKind = Field(description="release: close the driver. hold: run no probe. maintenance: no alert pages.")
    for_seconds: Seconds
    gpu: Gpu = None
    owner: Owner = ""
    reason: Reason = ""


class ReleaseParameters(Filter):
    for_seconds: Seconds
    gpu: Gpu = None


class GpuFilter(Filter):
    gpu: Gpu = None


class MaintenanceParameters(Filter):
    for_seconds: Seconds
    reason: Reason


class HoldParameters(Filter):
    for_seconds: Seconds
    reason: Reason = ""
    owner: Owner = ""


class OwnerFilter(Filter):
    owner: str = Field("", description="The owner of the hold. Without it, the hold that has none.")


# All windows


@router.get("/windows", summary="Time windows in force")
async def windows(request: Request, chosen: Annotated[KindFilter, Query()]) -> WindowsResponse:
    """List the windows. A window inhibits one thing until its deadline: the driver, probes or pages."""
    return WindowsResponse.from_report(_report(request), host_time(request), chosen.kind)


@router.post(
    "/windows",
    summary="Start a time window",
    dependencies=[needs_token],
    responses=errors(
        {
            **TOKEN_ERRORS,
            400: "Longer than is allowed, without a reason, or of one GPU although it applies to the node.",
            404: _MISSING_GPU,
            409: _STILL_OPEN,
        }
    ),
)
async def start_window(request: Request, chosen: Annotated[StartParameters, Query()]) -> WindowsChangeResponse:
    """Start a window, which replaces one of the same kind, GPU and owner.

    Answers when its effect is complete, or cannot be completed.
    """
    kind = chosen.kind
    if chosen.gpu is not None and kind is not WindowKind.RELEASE:
        raise Problem(400, "Invalid scope", f"A {kind} applies to the whole node.", "Leave out `gpu`.")
    result = await _start(request, kind, chosen.for_seconds, gpu=chosen.gpu, owner=chosen.owner, reason=chosen.reason)
    after = WindowsChangeResponse(**_windows(request), stored=result.stored)
    _check_complete(kind, result, after.document())
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
    """End a window. One of the marker file ends when the file is deleted."""
    window = next((window for window in in_force(_report(request).windows) if window.id == id), None)
    if window is None:
        raise Problem(404, "Unknown window", f"There is no window {id!r} in force.", "See GET /api/v1/windows.")
    if window.by == MARKER:
        raise _marker_present({})
    result = await _end(request, WindowSelection(id=id, by=_client(request)))
    return WindowsChangeResponse(**_windows(request), stored=result.stored)


# Releases


@router.get("/release", response_model_exclude_unset=True, summary="Releases in force")
async def releases(request: Request, _: NoParameters) -> ReleaseResponse:
    """With the token, processes of the agent that still have a GPU open are listed too."""
    return _releases(request)


@router.post(
    "/release",
    response_model_exclude_unset=True,
    summary="Release GPUs",
    dependencies=[needs_token],
    responses=errors({**TOKEN_ERRORS, 400: "Longer than is allowed.", 404: _MISSING_GPU, 409: _STILL_OPEN}),
)
async def start_release(request: Request, chosen: Annotated[ReleaseParameters, Query()]) -> ReleaseResponse:
    """Answers when no process of the agent has the GPU open. A repeated request starts the release again."""
    result = await _start(request, WindowKind.RELEASE, chosen.for_seconds, gpu=chosen.gpu)
    after = _releases(request)
    _check_complete(WindowKind.RELEASE, result, {"release": after.model_dump(mode="json", exclude_unset=True)})
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
            404: _MISSING_GPU,
            409: "The marker file still requests the release.",
        }
    ),
)
async def end_release(request: Request, chosen: Annotated[GpuFilter, Query()]) -> ReleaseResponse:
    """Without a GPU, ends all releases except that of the marker file, which ends when the file is deleted."""
    bus_id = None if chosen.gpu is None else _released_bus_id(request, chosen.gpu)
    await _end(request, WindowSelection(kind=WindowKind.RELEASE, bus_id=bus_id, by=_client(request)))
    after = _releases(request)
    if any(window.by == MARKER for window in after.windows):
        raise _marker_present({"release": after.model_dump(mode="json", exclude_unset=True)})
    return after


# Maintenance


@router.get("/maintenance", summary="Whether the node is in maintenance")
async def maintenance(request: Request, _: NoParameters) -> MaintenanceStateResponse:
    """During maintenance no alert pages; checks run and verdicts are recorded as usual."""
    return MaintenanceStateResponse(maintenance=MaintenanceResponse.from_report(_report(request)))


@router.post(
    "/maintenance",
    summary="Start maintenance",
    dependencies=[needs_token],
    responses=errors({**TOKEN_ERRORS, 400: "Longer than is allowed, or without a reason."}),
)
async def start_maintenance(
    request: Request, chosen: Annotated[MaintenanceParameters, Query()]
) -> MaintenanceChangeResponse:
    """Start a maintenance window, which replaces the one in force."""
    result = await _start(request, WindowKind.MAINTENANCE, chosen.for_seconds, reason=chosen.reason)
    return _maintenance(request, result)


@router.delete(
    "/maintenance",
    summary="End maintenance",
    dependencies=[needs_token],
    responses=errors({**TOKEN_ERRORS, 400: "The agent is stopping."}),
)
async def end_maintenance(request: Request, _: NoParameters) -> MaintenanceChangeResponse:
    """Alerts that are still firing page from now on."""
    result = await _end(request, WindowSelection(kind=WindowKind.MAINTENANCE, by=_client(request)))
    return _maintenance(request, result)


# Holds


@router.get("/probes/hold", summary="Holds in force")
async def holds(request: Request, _: NoParameters) -> HoldStateResponse:
    """While a hold is in force no run begins, neither by schedule nor by request."""
    return HoldStateResponse(hold=HoldResponse.from_report(_report(request)))


@router.post(
    "/probes/hold",
    summary="Hold probes",
    dependencies=[needs_token],
    responses=errors(
        {**TOKEN_ERRORS, 400: "Longer than is allowed, or a text with unprintable characters.", 409: _STILL_OPEN}
    ),
)
async def start_hold(request: Request, chosen: Annotated[HoldParameters, Query()]) -> HoldChangeResponse:
    """Start a hold.

    Ends the run in progress, and answers within 3 s, when no process of it is on a GPU. Replaces the hold of the same
    owner.
    """
    result = await _start(request, WindowKind.HOLD, chosen.for_seconds, owner=chosen.owner, reason=chosen.reason)
    after = HoldChangeResponse(hold=HoldResponse.from_report(_report(request)), stored=result.stored)
    _check_complete(WindowKind.HOLD, result, {"hold": after.document()["hold"]})
    return after


@router.delete(
    "/probes/hold",
    summary="End a hold",
    dependencies=[needs_token],
    responses=errors({**TOKEN_ERRORS, 400: "The agent is stopping."}),
)
async def end_hold(request: Request, chosen: Annotated[OwnerFilter, Query()]) -> HoldChangeResponse:
    """Probes can run again when no other hold is in force."""
    selection = WindowSelection(kind=WindowKind.HOLD, owner=chosen.owner.strip(), by=_client(request))
    result = await _end(request, selection)
    return HoldChangeResponse(hold=HoldResponse.from_report(_report(request)), stored=result.stored)


# What the routes share


async def _start(
    request: Request, kind: WindowKind, seconds: float, *, gpu: str | None = None, owner: str = "", reason: str = ""
) -> RequestResult:
    bus_id = NODE if gpu is None else parameters.gpu(_report(request), gpu).bus_id
    wanted = WindowRequest(kind=kind, seconds=seconds, by=_client(request), bus_id=bus_id, owner=owner, reason=reason)
    return await _accepted(kind, sources(request).start_window(wanted))


async def _end(request: Request, selection: WindowSelection) -> RequestResult:
    return await _accepted(selection.kind, sources(request).end_windows(selection))


async def _accepted(kind: WindowKind | None, future: Any) -> RequestResult:
    """Return the answer of the main loop. Raise a Problem if the request was refused."""
    result: RequestResult = await main_loop_answer(future, TIMEOUT_SECONDS)
    if result.refused:
        raise Problem(400, f"{(kind or 'window').capitalize()} refused", result.refused, result.remedy)
    return result


def _check_complete(kind: WindowKind, result: RequestResult, after: Mapping[str, Any]) -> None:
    """Raise a Problem if a process may still have a GPU open: the client must not reset or use the GPU yet."""
    if not result.holders and not result.unseen:
        return
    stuck = any(holder.stuck for holder in result.holders)
    remedy = "SIGKILL does not end it: it is blocked in the driver. Reboot the node." if stuck else "Retry later."
    title, detail = STILL_OPEN[kind]
    names = "; ".join(holder.description for holder in result.holders)
    holders = holder_documents(result.holders)
    raise Problem(409, title, detail.format(names) if names else result.unseen, remedy, holders=holders, **after)


def _marker_present(after: Mapping[str, Any]) -> Problem:
    detail, remedy = "The marker file still exists.", "Delete the file that release.marker names."
    return Problem(409, "Marker present", detail, remedy, **after)


def _windows(request: Request) -> dict[str, Any]:
    return dict(WindowsResponse.from_report(_report(request), host_time(request)))


def _releases(request: Request) -> ReleaseResponse:
    report = _report(request)
    response = ReleaseResponse.from_report(report, host_time(request))
    names = [holder.description for holder in report.release_holders]
    return response.model_copy(update={"holders": names}) if is_authorized(request) else response


def _maintenance(request: Request, result: RequestResult) -> MaintenanceChangeResponse:
    return MaintenanceChangeResponse(
        maintenance=MaintenanceResponse.from_report(_report(request)), stored=result.stored
    )


def _released_bus_id(request: Request, gpu: str) -> str:
    """Return the address of a GPU. A GPU that is bound to another driver now is found by its address alone."""
    address = parsed(gpu)
    if address is not None and address in released(_report(request).windows):
        return address
    return parameters.gpu(_report(request), gpu).bus_id


def _client(request: Request) -> str:
    """Return which client sent the request: the gpumon command, or another."""
    return COMMAND if request.headers.get("user-agent", "").startswith(COMMAND_USER_AGENT) else API


def _report(request: Request) -> Report:
    return sources(request).latest()
