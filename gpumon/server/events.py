"""/api/v1/events: the errors of GPUs and NVSwitches, as far back as the store keeps them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response

from gpumon.health.alerts.alert import SEVERITIES
from gpumon.model.error_event import KINDS, NIC, OVERRUN, SOURCES, SXID, XID, Burst
from gpumon.outputs.events import documents
from gpumon.server import parameters, schema
from gpumon.server.api import GPU, SINCE, Filter
from gpumon.server.problem import Problem
from gpumon.server.responses import reply, sources
from gpumon.state.report import Report
from gpumon.store.errors import StoreError
from gpumon.store.events import EventQuery

router = APIRouter(prefix="/api/v1", tags=["node"])

MOST = 1000
HIGHEST_CODE = 999_999
PAGE = 500
PATIENCE = 5.0
"""Seconds for the store to answer; then what the Report holds has to do."""


class EventFilter(Filter):
    gpu: str | None = GPU
    xid: int | None = Field(None, ge=0, le=HIGHEST_CODE, description="Only this error of a GPU.")
    sxid: int | None = Field(None, ge=0, le=HIGHEST_CODE, description="Only this error of an NVSwitch.")
    kind: Literal[KINDS] | None = Field(None, description="Only of this kind.")  # type: ignore[valid-type]
    severity: Literal[SEVERITIES] | None = Field(None, description="Only of this severity.")  # type: ignore[valid-type]
    source: Literal[SOURCES] | None = Field(None, description="Only what this source told.")  # type: ignore[valid-type]
    since: str | None = SINCE
    until: str | None = Field(None, description="Only what is older: 1h, RFC 3339, or seconds since the epoch.")
    limit: int = Field(100, ge=1, le=MOST, description="How many, the newest first.")


@router.get("/events", response_model=schema.Events, summary="Errors of GPUs and NVSwitches")
async def events(request: Request, chosen: Annotated[EventFilter, Query()]) -> Response:
    """The newest first, as far back as the store keeps them."""
    latest = sources(request).latest()
    query = _query(latest, chosen, sources(request).wall())

    def wanted(burst: Burst) -> bool:
        return chosen.severity in (None, latest.catalogue.explain(burst).severity)

    # What was told while the store was out of order is in the Report alone, and what is older in the store alone.
    found = {burst.id: burst for burst in latest.events if query.matches(burst) and wanted(burst)}
    complete = await _search(request, query, chosen.limit, wanted, found)
    newest = sorted(found.values(), key=lambda burst: burst.last_wall)[-chosen.limit :]
    return reply({"events": documents(latest, newest), "complete": complete})


async def _search(
    request: Request, query: EventQuery, limit: int, wanted: Callable[[Burst], bool], found: dict[str, Burst]
) -> bool:
    """Add what the store has, until it is enough. False when the store does not answer."""
    stored = 0
    try:
        async with asyncio.timeout(PATIENCE):
            async for burst in _stored(request, query):
                if wanted(burst):
                    found.setdefault(burst.id, burst)
                    stored += 1
                if stored == limit:
                    break
    except (StoreError, TimeoutError):
        return False
    return True


async def _stored(request: Request, query: EventQuery) -> AsyncIterator[Burst]:
    """Newest first, in pages: no long search keeps the store from its work."""
    while True:
        page = await asyncio.wrap_future(sources(request).find_events(query))
        for one in page:
            yield one.burst
        if len(page) < PAGE:
            return
        query = replace(query, before=page[-1].place)


def _query(latest: Report, chosen: EventFilter, now: float) -> EventQuery:
    kinds = {chosen.kind, XID if chosen.xid is not None else None, SXID if chosen.sxid is not None else None} - {None}
    if len(kinds) > 1 or (chosen.gpu is not None and kinds & {SXID, OVERRUN, NIC}):
        detail = "gpu, kind, xid and sxid contradict each other: an xid is of a GPU, an sxid of an NVSwitch."
        raise Problem(400, "Invalid parameter", detail, "Leave out all but one of them, or add only the gpu to an xid.")
    bus_id, uuid = (None, None) if chosen.gpu is None else _gpu(latest, chosen.gpu)
    return EventQuery(
        bus_id=bus_id,
        uuid=uuid,
        kind=next(iter(kinds), None),
        code=chosen.sxid if chosen.xid is None else chosen.xid,
        source=chosen.source,
        since=None if chosen.since is None else parameters.moment("since", chosen.since, now),
        until=None if chosen.until is None else parameters.moment("until", chosen.until, now),
        limit=PAGE,
    )


def _gpu(latest: Report, text: str) -> tuple[str | None, str]:
    """Bus id, where events without a uuid are this GPU's too, and uuid. A GPU that was here once has events still."""
    if text in {board.uuid for board in latest.memory.boards.values()} - {state.uuid for state in latest.gpus}:
        return None, text
    state = parameters.gpu(latest, text)
    return state.bus_id, state.uuid
