"""Route /api/v1/events: stored errors of GPUs, NVSwitches, network adapters and PCIe devices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from pydantic import Field

from gpumon.health.alert_texts import SEVERITIES
from gpumon.model.error_event import DRIVER, KINDS, NIC, OVERRUN, SOURCES, SXID, XID, ErrorEvent
from gpumon.outputs.responses.events import EventsResponse, newest_first
from gpumon.server import parameters
from gpumon.server.context import Filter, completes, sources
from gpumon.server.problem import Problem
from gpumon.state.report import Report
from gpumon.store.error_events import EventQuery

router = APIRouter(prefix="/api/v1", tags=["node"])

MAX_EVENTS = 1000
MAX_CODE = 999_999
PAGE_SIZE = 500


class EventFilter(Filter):
    gpu: str | None = parameters.GPU
    xid: int | None = Field(None, ge=0, le=MAX_CODE, description="Only this Xid of a GPU.")
    sxid: int | None = Field(None, ge=0, le=MAX_CODE, description="Only this SXid of an NVSwitch.")
    kind: Literal[KINDS] | None = Field(None, description="Only of this kind.")  # type: ignore[valid-type]
    severity: Literal[SEVERITIES] | None = Field(None, description="Only of this severity.")  # type: ignore[valid-type]
    source: Literal[SOURCES] | None = Field(None, description="Only from this source.")  # type: ignore[valid-type]
    since: str | None = parameters.SINCE
    until: str | None = Field(None, description="Only what is older: 1h, RFC 3339, or seconds since the epoch.")
    limit: int = Field(100, ge=1, le=MAX_EVENTS, description="Maximum number, newest first.")


@router.get("/events", summary="Errors of GPUs, NVSwitches, adapters and PCIe devices")
async def events(request: Request, chosen: Annotated[EventFilter, Query()]) -> EventsResponse:
    """Return the events that match all parameters, newest first, as far back as they are stored."""
    latest = sources(request).latest()
    query = _query(latest, chosen, sources(request).wall())

    def matches(event: ErrorEvent) -> bool:
        return chosen.severity in {None, latest.catalogue.explain(event).severity}

    # Only the Report has events that the store could not write, and only the store has older events.
    events = {event.id: event for event in latest.events if query.matches(event) and matches(event)}
    complete = await completes(_add_stored(request, query, chosen.limit, matches, events))
    newest = sorted(events.values(), key=lambda event: event.last.wall)[-chosen.limit :]
    return EventsResponse(events=newest_first(latest, newest), complete=complete)


async def _add_stored(
    request: Request,
    query: EventQuery,
    limit: int,
    matches: Callable[[ErrorEvent], bool],
    events: dict[str, ErrorEvent],
) -> None:
    """Add the newest `limit` stored events for which `matches` is true to `events`, a dict by id.

    They are read in pages, the newest first, so that the store is not blocked.
    """
    left = limit
    while left > 0:
        page = await asyncio.wrap_future(sources(request).find_events(query))
        matching = [stored.event for stored in page if matches(stored.event)][:left]
        for event in matching:
            events.setdefault(event.id, event)
        if len(page) < PAGE_SIZE:
            return
        left -= len(matching)
        query = replace(query, before=page[-1].place)


def _query(latest: Report, chosen: EventFilter, now: float) -> EventQuery:
    kinds = {chosen.kind, XID if chosen.xid is not None else None, SXID if chosen.sxid is not None else None} - {None}
    if len(kinds) > 1 or (chosen.gpu is not None and kinds & {SXID, OVERRUN, NIC, DRIVER}):
        detail = "gpu, kind, xid and sxid contradict each other: a GPU has Xids, an NVSwitch has SXids."
        raise Problem(400, "Invalid parameter", detail, "Give one of them, or an xid and its gpu.")
    bus_id, uuid = (None, None) if chosen.gpu is None else _gpu(latest, chosen.gpu)
    return EventQuery(
        bus_id=bus_id,
        uuid=uuid,
        kind=next(iter(kinds), None),
        code=chosen.sxid if chosen.xid is None else chosen.xid,
        source=chosen.source,
        since=None if chosen.since is None else parameters.moment("since", chosen.since, now),
        until=None if chosen.until is None else parameters.moment("until", chosen.until, now),
        limit=PAGE_SIZE,
    )


def _gpu(latest: Report, text: str) -> tuple[str | None, str]:
    """Return the PCI address and the uuid of a GPU. The address is needed for stored events that have no uuid.

    The address is None for a GPU that was removed. `text` is the uuid, index or PCI address in the request.
    """
    if text in {board.uuid for board in latest.inventory.stored.values()} - {state.uuid for state in latest.gpus}:
        return None, text
    state = parameters.gpu(latest, text)
    return state.bus_id, state.uuid
