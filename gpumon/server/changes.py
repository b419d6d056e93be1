"""Routes for the changes of an operator: clear verdicts, accept the inventory; and the audit of all changes."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response

from gpumon.config.configuration_error import did_you_mean
from gpumon.health.clear_request import ClearRequest
from gpumon.health.table import BY_NAME
from gpumon.outputs.problems import verdict_name
from gpumon.outputs.responses.devices import InventoryResponse
from gpumon.outputs.responses.health import ClearResponse, VerdictResponse, refused_verdicts
from gpumon.outputs.responses.report import AuditEntryResponse, AuditResponse
from gpumon.server.context import (
    MAIN_LOOP_TIMEOUT_SECONDS,
    STORE_TIMEOUT_SECONDS,
    AuditedFilter,
    Filter,
    NoParameters,
    gpu_parameter,
    main_loop_answer,
    render_once,
    sources,
)
from gpumon.server.guard import TOKEN_ERRORS, needs_token
from gpumon.server.problem import Problem, errors
from gpumon.state.report import Report
from gpumon.store.store_error import StoreError

router = APIRouter(prefix="/api/v1")

MAX_NOTE = 500
MAINTENANCE = "gpumon maintenance start --for 2h --reason WHY"


class ClearFilter(Filter):
    check: str | None = Field(None, description="Only verdicts of this check.")
    gpu: str | None = Field(None, description="Only of this GPU: uuid, index or PCI address.")
    device: str | None = Field(None, description="Only of this device, as its verdict names it.")
    note: str = Field("", max_length=MAX_NOTE, description="Text for the record: what was observed or done.")
    every: bool = Field(default=False, alias="all", description="All whose fault is over; without a check or a device.")


@router.post(
    "/clear",
    tags=["node"],
    summary="Clear verdicts of faults that are over",
    dependencies=[needs_token],
    responses=errors(
        {
            **TOKEN_ERRORS,
            400: "Neither a check nor a device, nor `all`.",
            404: "No such verdict; `verdicts` lists those that exist.",
            409: "The fault is still active; `refused` lists the verdicts and what to do.",
        }
    ),
)
async def clear(request: Request, chosen: Annotated[ClearFilter, Query()]) -> ClearResponse:
    """Clear verdicts, and answer when the change is stored or cannot be stored. Verdicts of active faults are kept."""
    report = sources(request).latest()
    if chosen.gpu is not None and chosen.device is not None:
        raise Problem(400, "Invalid parameter", "gpu and device are both given.", "Give one of them.")
    device = chosen.device if chosen.gpu is None else gpu_parameter(report, chosen.gpu).uuid
    if chosen.every == (chosen.check is not None or device is not None):
        detail = "all is given together with a check or a device." if chosen.every else "No verdict is selected."
        raise Problem(400, "Invalid parameter", detail, "Give check=NAME, gpu=GPU or device=NAME; or all=true alone.")
    note = " ".join("".join(character if character.isprintable() else " " for character in chosen.note).split())
    selection = ClearRequest(check=chosen.check, device=device, note=note)
    answer = await main_loop_answer(sources(request).clear_verdicts(selection), MAIN_LOOP_TIMEOUT_SECONDS)
    if answer.error:
        raise Problem(503, "Not cleared", answer.error, "Retry in ten seconds.")
    if not answer.cleared and answer.refused:
        refused = [verdict.document() for verdict in refused_verdicts(answer, report)]
        detail = " ".join(f"{verdict_name(verdict)}: {verdict['reason']} {verdict['message']}" for verdict in refused)
        actions = dict.fromkeys(verdict["action_text"] for verdict in refused)
        remedy = f"To do: {'; '.join(actions)}. To mute the alerts of this node until then: {MAINTENANCE}."
        raise Problem(409, "Fault still active", detail, remedy, refused=refused)
    if not answer.cleared and not chosen.every:
        raise _no_such_verdict(selection, report)
    return ClearResponse.from_answer(answer, report)


def _no_such_verdict(selection: ClearRequest, report: Report) -> Problem:
    verdicts = [VerdictResponse.from_verdict(verdict, report).document() for verdict in report.health.verdicts]
    unknown_check = selection.check is not None and selection.check not in BY_NAME
    wanted = " and ".join(
        f"of {what} {value!r}" for what, value in (("check", selection.check), ("device", selection.device)) if value
    )
    names = "; ".join(map(verdict_name, verdicts))
    return Problem(
        404,
        "Unknown check" if unknown_check else "No such verdict",
        f"There is no check {selection.check!r}; {did_you_mean(selection.check or '', BY_NAME)}."
        if unknown_check
        else f"There is no verdict {wanted}.",
        f"Existing verdicts: {names}." if verdicts else "The node has no verdict.",
        verdicts=verdicts,
    )


class AcceptFilter(AuditedFilter):
    part: list[str] = Field(
        [],
        max_length=1024,
        description="Only this GPU (uuid or PCI address) or port (`mlx5_3/1`, or GUID/1) that is missing, down, "
        "slower than before, or has too few PCIe lanes. May be given more than once; without it, all of them.",
    )


@router.get("/inventory", tags=["node"], summary="Expected GPUs and ports", response_model=InventoryResponse)
def state(request: Request, _: NoParameters) -> Response:
    """Return the inventory. A GPU is listed as missing, also after reboots, until it is back, replaced or accepted."""
    return render_once(request, "inventory", InventoryResponse.from_report)


@router.post(
    "/inventory/accept",
    tags=["node"],
    summary="Accept the GPUs and ports that are present",
    dependencies=[needs_token],
    responses=errors(
        {
            **TOKEN_ERRORS,
            409: "The GPUs cannot be counted now, a part is not missing, or the change cannot be stored.",
        }
    ),
)
async def accept(request: Request, chosen: Annotated[AcceptFilter, Query()]) -> InventoryResponse:
    """Accept that GPUs and ports are missing, down, slower or have fewer PCIe lanes, and clear their verdicts.

    An accepted GPU or port that comes back is expected again.
    """
    answer = await main_loop_answer(sources(request).accept_inventory(chosen.part), MAIN_LOOP_TIMEOUT_SECONDS)
    if answer.refused:
        raise Problem(409, "Not accepted", answer.refused, answer.remedy)
    return InventoryResponse.from_report(sources(request).latest())


class AuditFilter(Filter):
    limit: int = Field(100, ge=1, le=10_000, description="Maximum number, newest first.")


@router.get(
    "/audit",
    tags=["agent"],
    dependencies=[needs_token],
    summary="Who changed the state",
    responses=errors(TOKEN_ERRORS),
)
async def audit(request: Request, chosen: Annotated[AuditFilter, Query()]) -> AuditResponse:
    """Return the authorized requests to change the agent's state or to start work, also failed ones, newest first."""
    try:
        future = asyncio.wrap_future(sources(request).find_changes(chosen.limit))
        entries = await asyncio.wait_for(future, STORE_TIMEOUT_SECONDS)
    except (StoreError, asyncio.TimeoutError) as error:
        detail = f"The store cannot be read: {error or 'it does not answer'}."
        raise Problem(503, "Store unavailable", detail, "Retry. The agent's log has the same entries.") from error
    return AuditResponse(entries=[AuditEntryResponse.model_validate(entry) for entry in entries])
