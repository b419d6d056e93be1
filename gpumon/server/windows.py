"""Routes /api/v1/windows: time windows of every kind (release, hold and maintenance)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import Field

from gpumon.model.bus_id import parse_bus_id
from gpumon.model.request import DeviceHolder, RequestResult
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
    released_scopes,
)
from gpumon.outputs.responses.windows import HolderResponse, ListedWindowsResponse, WindowsChangeResponse, windows
from gpumon.server.context import (
    MAIN_LOOP_TIMEOUT_SECONDS,
    AuditedFilter,
    Filter,
    NoParameters,
    gpu_parameter,
    host_time,
    main_loop_answer,
    sources,
)
from gpumon.server.guard import TOKEN_ERRORS, is_authorized, needs_token
from gpumon.server.problem import Problem, errors

COMMAND_USER_AGENT = "gpumon/"
"""Prefix of the User-Agent header that the gpumon command sends."""
STILL_OPEN: Mapping[WindowKind, tuple[str, str]] = {
    WindowKind.RELEASE: ("Still held", "Still held by {}."),
    WindowKind.HOLD: ("Not free", "No run begins, but a run that was ended still has: {}."),
}
"""Title and detail of the error that states that a process still has a GPU open, by kind of time window."""
START_ERRORS = errors(
    {
        **TOKEN_ERRORS,
        400: "Longer than is allowed, a maintenance without a reason, or of one GPU although it applies to the node.",
        404: "No such GPU; `gpus` lists those that exist.",
        409: "A process has a GPU open (`holders` lists it) or may have. The window is in force unless it was ended.",
    }
)
END_ERRORS = errors(
    {
        **TOKEN_ERRORS,
        400: "The agent is stopping.",
        404: "No such window or GPU.",
        409: "The marker file still requests the release.",
    }
)

router = APIRouter(prefix="/api/v1", tags=["windows"])


class KindFilter(Filter):
    kind: WindowKind | None = Field(None, description="Only windows of this kind.")


class HoldParameters(Filter):
    for_seconds: float = Field(ge=1, allow_inf_nan=False, description="Length; the configuration sets a maximum.")
    owner: str = Field(
        "", description=f"For example the id of a job; each has one window. At most {MAX_OWNER_LENGTH} characters."
    )
    reason: str = Field("", description=f"Every client can read it. At most {MAX_REASON_LENGTH} characters.")


class StartParameters(HoldParameters):
    kind: WindowKind = Field(description="release: close the driver. hold: run no probe. maintenance: no alert pages.")
    gpu: str | None = Field(None, description="Only this GPU: uuid, index or PCI address. Without it the whole node.")


class EndParameters(AuditedFilter):
    kind: WindowKind = Field(description="Only windows of this kind.")
    gpu: str | None = Field(None, description="Only those of this GPU: uuid, index or PCI address.")
    owner: str | None = Field(None, description="Only those of this owner; empty for those without an owner.")


class HoldOwner(AuditedFilter):
    owner: str = Field("", description="The owner of the hold. Without it, the hold that has none.")


@router.get("/windows", response_model_exclude_unset=True, summary="Time windows in force")
async def list_windows(request: Request, chosen: Annotated[KindFilter, Query()]) -> ListedWindowsResponse:
    """List the time windows in force: releases (driver closed), holds (no probe runs), maintenance (no alert pages).

    With the token, also list the processes of the agent that still have a released GPU open.
    """
    report = sources(request).latest()
    response = ListedWindowsResponse(windows=windows(report, host_time(request), chosen.kind))
    if not is_authorized(request):
        return response
    return response.model_copy(update={"holders": _holders(report.inventory.release_holders)})


@router.post("/windows", summary="Start a time window", dependencies=[needs_token], responses=START_ERRORS)
async def start_window(request: Request, chosen: Annotated[StartParameters, Query()]) -> WindowsChangeResponse:
    """Start a time window, which replaces a client's window in force with the same kind, GPU and owner.

    A hold also ends the run in progress. The answer is sent when the effect of the window is complete, for a release
    that no process of the agent has the GPUs open, or 409 if it cannot be completed in time. It lists the windows of
    this kind.
    """
    wanted = WindowRequest(
        kind=chosen.kind,
        seconds=chosen.for_seconds,
        by=_client(request),
        bus_id=_scope(request, chosen.kind, chosen.gpu) or NODE,
        owner=chosen.owner,
        reason=chosen.reason,
    )
    result = await _await_acceptance(chosen.kind, sources(request).start_window(wanted))
    after = _changed(request, chosen.kind, result)
    if not result.holders and not result.not_readable:
        return after
    # A process may still have a GPU open: the client must not reset or use the GPU yet.
    remedy = "Retry later."
    if any(holder.stuck for holder in result.holders):
        remedy = "SIGKILL does not end it: it is blocked in the driver. Drain the node and reboot it."
    title, detail = STILL_OPEN[chosen.kind]
    names = "; ".join(holder.description for holder in result.holders)
    holders = [holder.document() for holder in _holders(result.holders)]
    shown = detail.format(names) if names else result.not_readable
    raise Problem(409, title, shown, remedy, holders=holders, **after.document())


@router.delete("/windows", summary="End time windows of a kind", dependencies=[needs_token], responses=END_ERRORS)
async def end_windows(request: Request, chosen: Annotated[EndParameters, Query()]) -> WindowsChangeResponse:
    """End all windows of a kind, or those of one GPU or owner. The answer lists the windows of this kind that are left.

    A release that the marker file started ends only when that file is deleted.
    """
    bus_id = _scope(request, chosen.kind, chosen.gpu)
    owner = None if chosen.owner is None else chosen.owner.strip()
    selection = WindowSelection(kind=chosen.kind, bus_id=bus_id, owner=owner, by=_client(request))
    after = await _end(request, chosen.kind, selection)
    left = in_force(sources(request).latest().windows, chosen.kind)
    if any(
        window.by == MARKER and owner in (None, window.owner) and (bus_id is None or window.bus_id in (NODE, bus_id))
        for window in left
    ):
        raise _marker_present(after)
    return after


@router.delete("/windows/{id}", summary="End a time window", dependencies=[needs_token], responses=END_ERRORS)
async def end_window(
    request: Request,
    id: str,  # noqa: A002 - its name in the API
    _: Annotated[AuditedFilter, Query()],
) -> WindowsChangeResponse:
    """End a time window. A window that the marker file started ends only when that file is deleted."""
    window = next((window for window in in_force(sources(request).latest().windows) if window.id == id), None)
    if window is None:
        raise Problem(404, "Unknown window", f"There is no window {id!r} in force.", "See GET /api/v1/windows.")
    if window.by == MARKER:
        raise _marker_present(_changed(request, window.kind, RequestResult()))
    return await _end(request, window.kind, WindowSelection(id=id, by=_client(request)))


# A short form for the prolog and epilog of a scheduler


@router.get("/probes/hold", response_model_exclude_unset=True, summary="Holds in force")
async def list_holds(request: Request, _: NoParameters) -> ListedWindowsResponse:
    """List the holds in force, as `GET /api/v1/windows?kind=hold` does."""
    return await list_windows(request, KindFilter(kind=WindowKind.HOLD))


@router.post("/probes/hold", summary="Hold probes", dependencies=[needs_token], responses=START_ERRORS)
async def start_hold(request: Request, chosen: Annotated[HoldParameters, Query()]) -> WindowsChangeResponse:
    """Start a hold, as `POST /api/v1/windows?kind=hold` does."""
    return await start_window(request, StartParameters(kind=WindowKind.HOLD, **chosen.model_dump()))


@router.delete("/probes/hold", summary="End a hold", dependencies=[needs_token], responses=END_ERRORS)
async def end_hold(request: Request, chosen: Annotated[HoldOwner, Query()]) -> WindowsChangeResponse:
    """End the hold of an owner, as `DELETE /api/v1/windows?kind=hold&owner=` does."""
    return await end_windows(request, EndParameters(kind=WindowKind.HOLD, **chosen.model_dump()))


async def _end(request: Request, kind: WindowKind, selection: WindowSelection) -> WindowsChangeResponse:
    result = await _await_acceptance(kind, sources(request).end_windows(selection))
    return _changed(request, kind, result)


async def _await_acceptance(kind: WindowKind, future: Future[RequestResult]) -> RequestResult:
    """Return the result of a request to the main loop. Raise a Problem if the main loop refused the request."""
    result = await main_loop_answer(future, MAIN_LOOP_TIMEOUT_SECONDS)
    if result.refused:
        raise Problem(400, f"{kind.capitalize()} refused", result.refused, result.remedy)
    return result


def _scope(request: Request, kind: WindowKind, gpu: str | None) -> str | None:
    """Return the bus id of a GPU; None for None. A GPU bound to another driver is known only by its PCI address."""
    if gpu is None:
        return None
    if kind is not WindowKind.RELEASE:
        raise Problem(400, "Invalid scope", f"A {kind} applies to the whole node.", "Leave out `gpu`.")
    report = sources(request).latest()
    address = parse_bus_id(gpu)
    if address is not None and address in released_scopes(report.windows):
        return address
    return gpu_parameter(report, gpu).bus_id


def _changed(request: Request, kind: WindowKind, result: RequestResult) -> WindowsChangeResponse:
    left = windows(sources(request).latest(), host_time(request), kind)
    return WindowsChangeResponse(windows=left, stored=result.stored)


def _marker_present(after: WindowsChangeResponse) -> Problem:
    detail, remedy = "The marker file still exists.", "Delete the file that release.marker names."
    return Problem(409, "Marker present", detail, remedy, **after.document())


def _client(request: Request) -> str:
    """Return the value of the window's attribute `by`: COMMAND if the gpumon command sent the request, else API."""
    return COMMAND if request.headers.get("user-agent", "").startswith(COMMAND_USER_AGENT) else API


def _holders(holders: Iterable[DeviceHolder]) -> list[HolderResponse]:
    return [HolderResponse.model_validate(holder) for holder in holders]
