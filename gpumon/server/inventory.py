"""Routes /api/v1/inventory: list the expected GPUs and ports, or accept the present ones as the expected ones."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response

from gpumon.outputs.responses.inventory import InventoryResponse
from gpumon.server.context import (
    MAIN_LOOP_TIMEOUT_SECONDS,
    AuditedFilter,
    NoParameters,
    main_loop_answer,
    render_once,
    sources,
)
from gpumon.server.guard import TOKEN_ERRORS, needs_token
from gpumon.server.problem import Problem, errors

router = APIRouter(prefix="/api/v1", tags=["node"])


class AcceptFilter(AuditedFilter):
    part: list[str] = Field(
        [],
        max_length=1024,
        description="Only this GPU (uuid or PCI address) or port (`mlx5_3/1`, or GUID/1) that is missing, down, "
        "slower than before, or has too few PCIe lanes. May be given more than once; without it, all of them.",
    )


@router.get("/inventory", summary="Expected GPUs and ports", response_model=InventoryResponse)
def state(request: Request, _: NoParameters) -> Response:
    """Return the inventory. A GPU is listed as missing, also after reboots, until it is back, replaced or accepted."""
    return render_once(request, "inventory", InventoryResponse.from_report)


@router.post(
    "/inventory/accept",
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
