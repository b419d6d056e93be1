"""Routes below /api/v1 that return the Report, one section of it, or the stored events, as JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request
from pydantic import Field
from starlette.responses import Response

from gpumon.health.alert_texts import SEVERITIES
from gpumon.model.allocation import LATE_SECONDS, Allocation
from gpumon.model.error_event import DRIVER, KINDS, NIC, OVERRUN, SOURCES, SXID, XID, ErrorEvent
from gpumon.outputs.responses.devices import GpuResponse, GpusResponse, NvlinksResponse, PortsResponse
from gpumon.outputs.responses.health import AlertResponse, AlertsResponse, HealthResponse
from gpumon.outputs.responses.report import EventsResponse, NodeResponse, ReportResponse, newest_first
from gpumon.server.context import (
    SINCE,
    Filter,
    NoParameters,
    completes,
    gpu_parameter,
    host_time,
    moment_parameter,
    render_once,
    sources,
)
from gpumon.server.problem import Problem, errors
from gpumon.state.report import Report
from gpumon.store.allocations import AllocationQuery
from gpumon.store.error_events import EventQuery

router = APIRouter(prefix="/api/v1", tags=["node"])
GPU = Field(None, description="Only of this GPU: uuid or index.")
MAX_EVENTS = 1000
MAX_CODE = 999_999
PAGE_SIZE = 500


class LinkFilter(Filter):
    gpu: str | None = GPU


class AlertFilter(Filter):
    state: Literal["pending", "firing", "resolved"] | None = Field(None, description="Only in this state.")
    severity: Literal["critical", "warning", "info"] | None = Field(None, description="Only of this severity.")


@router.get("/report", summary="The whole report", response_model=ReportResponse)
def report(request: Request, _: NoParameters) -> Response:
    return render_once(request, "report", lambda latest: ReportResponse.from_report(latest, host_time(request)))


@router.get("/node", summary="The node, the agent, and their problems")
async def node(request: Request, _: NoParameters) -> NodeResponse:
    return NodeResponse.from_report(sources(request).latest(), host_time(request))


@router.get("/gpus", summary="All GPUs of the inventory", response_model=GpusResponse)
def gpus(request: Request, _: NoParameters) -> Response:
    """Return all GPUs. A GPU with a fault remains in the list, with its identity and fault; its readings are null."""
    return render_once(request, "gpus", GpusResponse.from_report)


@router.get("/gpus/{gpu}", summary="One GPU", responses=errors({404: "No such GPU; `gpus` lists those that exist."}))
async def gpu_by_name(
    request: Request, gpu: Annotated[str, Path(description="uuid or index.")], _: NoParameters
) -> GpuResponse:
    """Return one GPU. Its uuid is permanent; its index may change."""
    return GpuResponse.from_state(gpu_parameter(sources(request).latest(), gpu))


@router.get("/links", summary="NVLinks", response_model=NvlinksResponse)
def links(request: Request, chosen: Annotated[LinkFilter, Query()]) -> Response:
    uuid = None if chosen.gpu is None else gpu_parameter(sources(request).latest(), chosen.gpu).uuid
    return render_once(request, f"links {uuid}", lambda latest: NvlinksResponse.from_report(latest, uuid))


@router.get("/ports", summary="InfiniBand and RoCE ports", response_model=PortsResponse)
def ports(request: Request, _: NoParameters) -> Response:
    return render_once(request, "ports", PortsResponse.from_report)


@router.get("/health", summary="Verdicts of the health checks")
async def health(request: Request, _: NoParameters) -> HealthResponse:
    """Return the verdicts that are not inhibited. Each lists the verdicts that it inhibits as its consequences."""
    latest = sources(request).latest()  # before the clock is read, so that no age is negative
    return HealthResponse.from_report(latest, sources(request).boot())


@router.get("/alerts", summary="Alerts that are pending or firing, or were resolved recently")
async def alerts(request: Request, chosen: Annotated[AlertFilter, Query()]) -> AlertsResponse:
    return AlertsResponse(
        alerts=[
            AlertResponse.model_validate(alert)
            for alert in sources(request).latest().alerts
            if chosen.state in {None, alert.state} and chosen.severity in {None, alert.severity}
        ]
    )


class EventFilter(Filter):
    gpu: str | None = GPU
    xid: int | None = Field(None, ge=0, le=MAX_CODE, description="Only this Xid of a GPU.")
    sxid: int | None = Field(None, ge=0, le=MAX_CODE, description="Only this SXid of an NVSwitch.")
    kind: Literal[KINDS] | None = Field(None, description="Only of this kind.")  # type: ignore[valid-type]
    severity: Literal[SEVERITIES] | None = Field(None, description="Only of this severity.")  # type: ignore[valid-type]
    source: Literal[SOURCES] | None = Field(None, description="Only from this source.")  # type: ignore[valid-type]
    since: str | None = SINCE
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
    held: list[Allocation] = []
    complete &= await completes(_add_allocations(request, newest, held))
    return EventsResponse(events=newest_first(latest, newest, held), complete=complete)


async def _add_allocations(request: Request, events: Sequence[ErrorEvent], held: list[Allocation]) -> None:
    """Add the stored allocations in whose time an event of a GPU was to `held`."""
    walls = [event.last.wall for event in events if event.uuid]
    if walls:
        query = AllocationQuery(since=min(walls) - LATE_SECONDS, until=max(walls))
        found = await asyncio.wrap_future(sources(request).find_allocations(query))
        held.extend(found)


async def _add_stored(
    request: Request,
    query: EventQuery,
    limit: int,
    matches: Callable[[ErrorEvent], bool],
    events: dict[str, ErrorEvent],
) -> None:
    """Add the newest `limit` stored events that match, read in pages, so that others can read too, to `events`."""
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
    uuid, bus_id = chosen.gpu, None
    removed = {board.uuid for board in latest.inventory.stored.values()} - {state.uuid for state in latest.gpus}
    if chosen.gpu is not None and chosen.gpu not in removed:
        state = gpu_parameter(latest, chosen.gpu)
        uuid, bus_id = state.uuid, state.bus_id
    return EventQuery(
        bus_id=bus_id,  # for stored events that have no uuid
        uuid=uuid,
        kind=next(iter(kinds), None),
        code=chosen.sxid if chosen.xid is None else chosen.xid,
        source=chosen.source,
        since=moment_parameter("since", chosen.since, now),
        until=moment_parameter("until", chosen.until, now),
        limit=PAGE_SIZE,
    )
