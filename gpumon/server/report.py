"""Routes below /api/v1 that return the whole Report or one section of it as JSON."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request
from pydantic import Field
from starlette.responses import Response

from gpumon.outputs.responses.devices import GpuResponse, GpusResponse, NvlinksResponse, PortsResponse
from gpumon.outputs.responses.health import AlertResponse, AlertsResponse, HealthResponse
from gpumon.outputs.responses.report import NodeResponse, ReportResponse
from gpumon.server import parameters
from gpumon.server.context import Filter, NoParameters, host_time, render_once, sources
from gpumon.server.problem import errors

router = APIRouter(prefix="/api/v1", tags=["node"])


class LinkFilter(Filter):
    gpu: str | None = parameters.GPU


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
    return GpuResponse.from_state(parameters.gpu(sources(request).latest(), gpu))


@router.get("/links", summary="NVLinks", response_model=NvlinksResponse)
def links(request: Request, chosen: Annotated[LinkFilter, Query()]) -> Response:
    uuid = None if chosen.gpu is None else parameters.gpu(sources(request).latest(), chosen.gpu).uuid
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
