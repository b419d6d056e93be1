"""Route /metrics for Prometheus, and the liveness and readiness routes of the agent."""

from __future__ import annotations

import gzip

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from gpumon.model.reading import Page
from gpumon.outputs import dcgm
from gpumon.outputs.prometheus import CONTENT_TYPE, GZIP_LEVEL, Exposition
from gpumon.server.context import rendered_documents, sources
from gpumon.server.problem import Problem, errors

router = APIRouter(tags=["agent"])


@router.get("/metrics/", include_in_schema=False)
@router.get("/metrics", response_class=PlainTextResponse, summary="All metrics but single links, for Prometheus")
async def metrics(request: Request) -> Response:
    """Return metrics in text format 0.0.4, compressed if the client accepts gzip. A scrape causes no driver call."""
    return _page(request, sources(request).exposition[Page.METRICS]())


@router.get(Page.LINKS.value, response_class=PlainTextResponse, summary="Metrics of single links, for Prometheus")
async def link_metrics(request: Request) -> Response:
    """Return the metrics of each NVLink and chip-to-chip link, and the errors of each port by kind.

    Scrape it less often than /metrics.
    """
    return _page(request, sources(request).exposition[Page.LINKS]())


@router.get(dcgm.PATH, response_class=PlainTextResponse, summary="GPU metrics as dcgm-exporter names them")
def dcgm_metrics(request: Request) -> Response:
    """Return GPU metrics with the names, labels and units of dcgm-exporter, as docs/dcgm.md describes them."""
    given = sources(request)
    report = given.latest()
    raw = rendered_documents(request).get(dcgm.PATH, report, lambda: given.dcgm(report).encode())
    return _page(request, Exposition(raw, gzip.compress(raw, GZIP_LEVEL)))


def _page(request: Request, page: Exposition) -> Response:
    headers = {"Content-Type": CONTENT_TYPE, "Vary": "Accept-Encoding"}
    if accepts_gzip(request.headers.get("accept-encoding", "")):
        return Response(page.gzipped, headers=headers | {"Content-Encoding": "gzip"})
    return Response(page.raw, headers=headers)


@router.get("/-/healthy", response_class=PlainTextResponse, summary="Liveness")
async def healthy() -> Response:
    """Answer 200 as long as the server runs, whatever the state of the driver and the GPUs."""
    return PlainTextResponse("Healthy.\n")


@router.get(
    "/-/ready",
    response_class=PlainTextResponse,
    summary="Readiness",
    responses=errors({503: "The first poll has not ended."}),
)
async def ready(request: Request) -> Response:
    """Answer 200 after the first poll or its deadline, or if the whole node is released. Before that, answer 503."""
    if not sources(request).ready():
        retry = {"Retry-After": "1"}
        raise Problem(503, "Not ready", "The first poll has not ended.", "Retry in a second.", headers=retry)
    return PlainTextResponse("Ready.\n")


def accepts_gzip(accept_encoding: str) -> bool:
    """Return True if an Accept-Encoding header allows gzip: `gzip`, or else `*`, with a weight above 0."""
    weights = {}
    for item in accept_encoding.lower().split(","):
        name, _, parameters = item.partition(";")
        key, _, value = parameters.partition("=")
        try:
            weights[name.strip()] = float(value) if key.strip() == "q" else 1.0
        except ValueError:
            weights[name.strip()] = 0.0
    return weights.get("gzip", weights.get("*", 0.0)) > 0
