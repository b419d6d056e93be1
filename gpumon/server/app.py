"""Assembles the web application from the routes, and its OpenAPI document."""

from __future__ import annotations

from functools import cache
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from gpumon import __version__
from gpumon.outputs.responses.base import Document
from gpumon.server import changes, jobs, page, probe, problem, report, scrape, windows
from gpumon.server.context import IndentedJson, RenderedDocuments, Sources
from gpumon.server.guard import Guard
from gpumon.server.problem import MEDIA_TYPE, ProblemDetails

DESCRIPTION = """\
State of the agent on this GPU host. No request causes a driver call: an answer comes from one frozen report, those of
the audit and the probe history from the store.

The names of readings are those of the metrics without their prefix, unit included. A reading that the GPU or its driver
does not provide is null, never 0. Times are RFC 3339 in UTC. Errors are problem+json with a remedy. A request that
starts work or changes state needs `Authorization: Bearer <token>` over TCP; the unix socket needs none, because the
kernel names the user."""
_PROBLEM = {MEDIA_TYPE: {"schema": {"$ref": f"#/components/schemas/{ProblemDetails.__name__}"}}}


def create_app(sources: Sources) -> FastAPI:
    """Return the FastAPI application with all routes. The middleware `Guard` checks each request before its route."""
    app = FastAPI(
        version=__version__,
        docs_url=None,  # FastAPI's own pages load scripts from the internet, which GPU hosts often cannot reach
        redoc_url=None,
        openapi_url=None,  # page.py serves the document, rendered once
        redirect_slashes=False,  # some scrapers do not follow redirects and lose the metrics without an error
        default_response_class=IndentedJson,
        exception_handlers=problem.HANDLERS,
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.sources = sources
    app.state.rendered = RenderedDocuments()
    for part in (scrape, probe, windows, report, jobs, changes, page):
        app.include_router(part.router)
    app.include_router(probe.history)
    app.openapi = cache(lambda: _openapi_document(app))  # type: ignore[method-assign]
    app.add_middleware(Guard, sources=sources)
    return app


def _openapi_document(app: FastAPI) -> Document:
    """Return FastAPI's OpenAPI document, in which every error is application/problem+json."""
    document: dict[str, Any] = get_openapi(
        title="gpumon", version=app.version, description=DESCRIPTION, routes=app.routes
    )
    schemas = document["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas[ProblemDetails.__name__] = ProblemDetails.model_json_schema()
    for _, _, operation in page.operations(document):
        responses = operation["responses"]
        responses.pop("422", None)
        responses["default"] = {"description": "An error, with a remedy."}
        for status, response in responses.items():
            if status == "default" or status >= "400":
                response["content"] = _PROBLEM
    return document
