"""/api/v1: the Report as JSON. Every body is made by outputs/document; the models only describe it."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from gpumon.outputs import document
from gpumon.outputs import health as health_document
from gpumon.server import parameters, schema, schema_health
from gpumon.server.responses import reply, sources, stamp

router = APIRouter(prefix="/api/v1", tags=["node"])

SINCE = Field(None, description="Only what is newer: 1h, RFC 3339, or seconds since the epoch.")
GPU = Field(None, description="Only of this GPU: uuid or index.")


class Filter(BaseModel):
    """A parameter that is not known is an error: a spelling mistake must not pass for an empty filter."""

    model_config = ConfigDict(extra="forbid")


Nothing = Annotated[Filter, Query()]
"""For what takes no parameter at all."""


class LinkFilter(Filter):
    gpu: str | None = GPU


class AlertFilter(Filter):
    state: Literal["pending", "firing", "resolved"] | None = Field(None, description="Only in this state.")
    severity: Literal["critical", "warning", "info"] | None = Field(None, description="Only of this severity.")


@router.get("/report", response_model=schema.Report, summary="Everything, from one moment")
async def report(request: Request, _: Nothing) -> Response:
    return reply(document.whole(sources(request).latest(), stamp(request)))


@router.get("/node", response_model=schema.Node, summary="The node, the agent, and what is wrong")
async def node(request: Request, _: Nothing) -> Response:
    return reply(document.node(sources(request).latest(), stamp(request)))


@router.get("/gpus", response_model=schema.Gpus, summary="All GPUs of the inventory")
async def gpus(request: Request, _: Nothing) -> Response:
    """A GPU stays in the inventory when it is lost: its identity and fault are shown, its readings are null."""
    return reply({"gpus": document.gpus(sources(request).latest())})


@router.get(
    "/gpus/{gpu}",
    response_model=schema.Gpu,
    summary="One GPU",
    responses={404: {"description": "No such GPU; `gpus` names those that exist."}},
)
async def one_gpu(request: Request, gpu: Annotated[str, Path(description="uuid or index.")], _: Nothing) -> Response:
    """A uuid stays with the GPU, an index may not."""
    return reply(document.gpu(parameters.gpu(sources(request).latest(), gpu)))


@router.get("/links", response_model=schema.Links, summary="NVLinks")
async def links(request: Request, chosen: Annotated[LinkFilter, Query()]) -> Response:
    latest = sources(request).latest()
    uuid = None if chosen.gpu is None else parameters.gpu(latest, chosen.gpu).uuid
    return reply({"links": [one for one in document.links(latest) if uuid in (None, one["uuid"])]})


@router.get("/ports", response_model=schema.Ports, summary="InfiniBand and RoCE ports")
async def ports(request: Request, _: Nothing) -> Response:
    return reply({"ports": document.ports(sources(request).latest())})


@router.get("/health", response_model=schema_health.Health, summary="Verdicts: what is wrong, and what to do")
async def health(request: Request, _: Nothing) -> Response:
    """Of one fault the primary verdict; what follows from it stands under it."""
    latest = sources(request).latest()  # before the clock is looked at
    return reply(health_document.health(latest, sources(request).boot()))


@router.get("/alerts", response_model=schema.Alerts, summary="Pending, firing and lately resolved alerts")
async def alerts(request: Request, chosen: Annotated[AlertFilter, Query()]) -> Response:
    found = [
        document.alert(one)
        for one in sources(request).latest().alerts
        if chosen.state in (None, one.state) and chosen.severity in (None, one.severity)
    ]
    return reply({"alerts": found})
