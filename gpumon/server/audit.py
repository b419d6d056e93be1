"""Route /api/v1/audit: requests to change the agent's state. Reading them needs the authorisation for changes."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import Field

from gpumon.outputs.responses.events import AuditEntryResponse, AuditResponse
from gpumon.server.context import STORE_TIMEOUT_SECONDS, Filter, sources
from gpumon.server.guard import TOKEN_ERRORS, needs_token
from gpumon.server.problem import Problem, errors
from gpumon.store.store_error import StoreError

router = APIRouter(prefix="/api/v1", tags=["agent"])


class AuditFilter(Filter):
    limit: int = Field(100, ge=1, le=10_000, description="Maximum number, newest first.")


@router.get("/audit", dependencies=[needs_token], summary="Who changed the state", responses=errors(TOKEN_ERRORS))
async def audit(request: Request, chosen: Annotated[AuditFilter, Query()]) -> AuditResponse:
    """Return the authorized requests to change the agent's state or to start work, also failed ones, newest first."""
    try:
        future = asyncio.wrap_future(sources(request).find_changes(chosen.limit))
        entries = await asyncio.wait_for(future, STORE_TIMEOUT_SECONDS)
    except (StoreError, asyncio.TimeoutError) as error:
        detail = f"The store cannot be read: {error or 'it does not answer'}."
        raise Problem(503, "Store unavailable", detail, "Retry. The agent's log has the same entries.") from error
    return AuditResponse(entries=[AuditEntryResponse.model_validate(entry) for entry in entries])
