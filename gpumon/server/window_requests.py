"""Functions that the routes for time windows share: send requests to the main loop, and convert their results."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Annotated, Any

from fastapi import Request
from pydantic import Field

from gpumon.model.request import RequestResult
from gpumon.model.time_window import (
    API,
    COMMAND,
    MAX_OWNER_LENGTH,
    MAX_REASON_LENGTH,
    NODE,
    WindowKind,
    WindowRequest,
    WindowSelection,
)
from gpumon.outputs.responses.windows import holder_documents
from gpumon.server import parameters
from gpumon.server.context import MAIN_LOOP_TIMEOUT_SECONDS, main_loop_answer, sources
from gpumon.server.problem import Problem

COMMAND_USER_AGENT = "gpumon/"
"""Prefix of the User-Agent header that the gpumon command sends."""
STILL_OPEN: Mapping[WindowKind, tuple[str, str]] = {
    WindowKind.RELEASE: ("Still held", "Still held by {}."),
    WindowKind.HOLD: ("Not free", "No run begins, but a run that was ended still has: {}."),
}
"""Title and detail of the error that states that a process still has a GPU open, by kind of time window."""
MISSING_GPU = "No such GPU; `gpus` lists those that exist."
STILL_OPEN_TEXT = (
    "A process has a GPU open (`holders` lists it) or may have. The window is in force unless it was ended."
)

Seconds = Annotated[float, Field(ge=1, allow_inf_nan=False, description="Length; the configuration sets a maximum.")]
Gpu = Annotated[str | None, Field(description="Only this GPU: uuid, index or PCI address. Without it the whole node.")]
Owner = Annotated[
    str,
    Field(description=f"For example the id of a job; each has one window. At most {MAX_OWNER_LENGTH} characters."),
]
Reason = Annotated[str, Field(description=f"Every client can read it. At most {MAX_REASON_LENGTH} characters.")]


async def start(
    request: Request, kind: WindowKind, seconds: float, *, gpu: str | None = None, owner: str = "", reason: str = ""
) -> RequestResult:
    bus_id = NODE if gpu is None else parameters.gpu(sources(request).latest(), gpu).bus_id
    wanted = WindowRequest(kind=kind, seconds=seconds, by=client(request), bus_id=bus_id, owner=owner, reason=reason)
    return await _await_acceptance(kind, sources(request).start_window(wanted))


async def end(request: Request, selection: WindowSelection) -> RequestResult:
    return await _await_acceptance(selection.kind, sources(request).end_windows(selection))


async def _await_acceptance(kind: WindowKind | None, future: Future[RequestResult]) -> RequestResult:
    """Return the result of a request to the main loop. Raise a Problem if the main loop refused the request."""
    result = await main_loop_answer(future, MAIN_LOOP_TIMEOUT_SECONDS)
    if result.refused:
        raise Problem(400, f"{(kind or 'window').capitalize()} refused", result.refused, result.remedy)
    return result


def check_complete(kind: WindowKind, result: RequestResult, after: Mapping[str, Any]) -> None:
    """Raise a Problem if a process may still have a GPU open, because the client must not reset or use the GPU yet.

    `after`: further members for the body of the error, such as the windows after the request.
    """
    if not result.holders and not result.not_readable:
        return
    stuck = any(holder.stuck for holder in result.holders)
    remedy = (
        "SIGKILL does not end it: it is blocked in the driver. Drain the node and reboot it."
        if stuck
        else "Retry later."
    )
    title, detail = STILL_OPEN[kind]
    names = "; ".join(holder.description for holder in result.holders)
    holders = holder_documents(result.holders)
    raise Problem(409, title, detail.format(names) if names else result.not_readable, remedy, holders=holders, **after)


def marker_present(after: Mapping[str, Any]) -> Problem:
    detail, remedy = "The marker file still exists.", "Delete the file that release.marker names."
    return Problem(409, "Marker present", detail, remedy, **after)


def client(request: Request) -> str:
    """Return the value of the window's attribute `by`: COMMAND if the gpumon command sent the request, else API."""
    return COMMAND if request.headers.get("user-agent", "").startswith(COMMAND_USER_AGENT) else API
