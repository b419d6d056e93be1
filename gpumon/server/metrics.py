"""The page that Prometheus scrapes, and the two health pages, which speak of the process alone."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from gpumon.outputs.prometheus import CONTENT_TYPE
from gpumon.server.problem import Problem
from gpumon.server.responses import sources

router = APIRouter(tags=["agent"])

HEALTHY, READY = "Healthy.\n", "Ready.\n"


@router.get("/metrics/", include_in_schema=False)
@router.get("/metrics", response_class=PlainTextResponse, summary="All metrics, for Prometheus")
async def metrics(request: Request) -> Response:
    """The text format 0.0.4, compressed where the client takes gzip. No driver call is made."""
    page = sources(request).exposition()
    headers = {"Content-Type": CONTENT_TYPE, "Vary": "Accept-Encoding"}
    if takes_gzip(request.headers.get("accept-encoding", "")):
        return Response(page.gzipped, headers=headers | {"Content-Encoding": "gzip"})
    return Response(page.raw, headers=headers)


@router.get("/-/healthy", response_class=PlainTextResponse, summary="The process answers")
async def healthy() -> Response:
    """200 whatever the driver and the GPUs do."""
    return PlainTextResponse(HEALTHY)


@router.get(
    "/-/ready",
    response_class=PlainTextResponse,
    summary="The first poll is over",
    responses={503: {"description": "Not yet."}},
)
async def ready(request: Request) -> Response:
    """200 once a first poll has ended or its deadline has passed, whatever the driver does."""
    if not sources(request).ready():
        raise not_ready()
    return PlainTextResponse(READY)


def not_ready() -> Problem:
    retry = {"Retry-After": "1"}
    return Problem(503, "Not ready", "The first poll is not over.", "Ask again in a second.", headers=retry)


def takes_gzip(accept_encoding: str) -> bool:
    """Whether an Accept-Encoding header names gzip, or anything, with a weight above 0; the name goes first."""
    weights = {}
    for one in accept_encoding.lower().split(","):
        name, _, parameters = one.partition(";")
        weights[name.strip()] = _weight(parameters)
    return weights.get("gzip", weights.get("*", 0.0)) > 0


def _weight(parameters: str) -> float:
    name, _, value = parameters.partition("=")
    try:
        return float(value) if name.strip() == "q" else 1.0
    except ValueError:
        return 0.0
