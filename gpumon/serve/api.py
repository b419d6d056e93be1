"""/api/v1: the Report as JSON. Every body is made by outputs/document; the models only describe it."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from gpumon.outputs import document
from gpumon.outputs import health as health_document
from gpumon.probe.probes import PROBES
from gpumon.probe.result import ProbeResult
from gpumon.probe.state import MOST_RESULTS
from gpumon.serve import ask, schema, schema_health, schema_probe
from gpumon.serve.answer import reply, sources, stamp
from gpumon.serve.guard import is_authorized
from gpumon.serve.problem import Problem

router = APIRouter(prefix="/api/v1", tags=["node"])

SINCE = Field(None, description="Only what is newer: 1h, RFC 3339, or seconds since the epoch.")
GPU = Field(None, description="Only of this GPU: uuid or index.")


_REMEMBERED = "How many, the newest first; good runs are remembered longer than others."


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


class ProbeFilter(Filter):
    since: str | None = SINCE
    probe: str | None = Field(None, description=f"Only of this probe: {', '.join(PROBES)}.")
    limit: int = Field(100, ge=1, le=5 * MOST_RESULTS, description=_REMEMBERED)


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
    return reply(document.gpu(ask.gpu(sources(request).latest(), gpu)))


@router.get("/links", response_model=schema.Links, summary="NVLinks")
async def links(request: Request, chosen: Annotated[LinkFilter, Query()]) -> Response:
    latest = sources(request).latest()
    uuid = None if chosen.gpu is None else ask.gpu(latest, chosen.gpu).uuid
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


@router.get(
    "/probes",
    response_model=schema_probe.Probes,
    summary="Runs of the probes",
    responses={404: {"description": "No such probe; `probes` names those that there are."}},
)
async def probes(request: Request, chosen: Annotated[ProbeFilter, Query()]) -> Response:
    """The newest first."""
    after = _after(request, chosen.since)
    name = None if chosen.probe is None else ask.probe(chosen.probe).name
    history = sources(request).latest().probe.known
    found = [one for one in history if one.started > after and name in (None, one.probe)]
    return reply({"probes": [document.probe_result(one) for one in reversed(found[-chosen.limit :])]})


@router.get(
    "/probes/{run}",
    response_model=schema_probe.ProbeResultWithLog,
    summary="One run",
    responses={
        202: {"model": schema_probe.ProbeRunning, "description": "In progress: ask again."},
        404: {"description": "No such run, or no longer remembered."},
    },
)
async def one_probe(request: Request, run: Annotated[str, Path(description="Id of the run.")], _: Nothing) -> Response:
    """While it is in progress, how far it is. With the token, what its ranks printed is shown too."""
    state = sources(request).latest().probe
    if run == state.running:
        return reply(document.probe_running(state), 202, {"Retry-After": "1"})
    for result in state.known:
        if result.id == run:
            return reply(document.probe_result(result) | _log(request, result))
    raise unknown_run(run)


def unknown_run(run: str) -> Problem:
    return Problem(404, "Unknown run", f"There is no run {run!r}.", "/api/v1/probes names those that are remembered.")


def _log(request: Request, result: ProbeResult) -> document.Document:
    return {"log": result.log} if is_authorized(request) else {}


def _after(request: Request, since: str | None) -> float:
    return 0.0 if since is None else ask.moment("since", since, sources(request).wall())
