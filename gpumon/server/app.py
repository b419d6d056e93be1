"""Assembles the web application from the routes."""

from __future__ import annotations

from fastapi import FastAPI

from gpumon import __version__
from gpumon.server import (
    audit,
    clear,
    events,
    inventory,
    openapi,
    page,
    probe,
    probe_history,
    problem,
    report,
    runbooks,
    scrape,
    windows,
)
from gpumon.server.context import IndentedJson, RenderedDocuments
from gpumon.server.guard import Guard
from gpumon.server.sources import Sources


def create_app(sources: Sources) -> FastAPI:
    """Return the FastAPI application with all routes. The middleware `Guard` checks each request before its route."""
    app = FastAPI(
        version=__version__,
        docs_url=None,  # FastAPI's own pages load scripts from the internet, which GPU hosts often cannot reach
        redoc_url=None,
        openapi_url=None,  # page.py serves the document, rendered once
        redirect_slashes=False,  # some scrapers do not follow redirects and lose the metrics without an error
        default_response_class=IndentedJson,
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.sources = sources
    app.state.rendered = RenderedDocuments()
    parts = (
        scrape,
        probe,
        windows,
        probe_history,
        report,
        clear,
        audit,
        events,
        inventory,
        page,
        runbooks,
    )
    for part in parts:
        app.include_router(part.router)
    problem.install(app)
    openapi.install(app)
    app.add_middleware(Guard, sources=sources)
    return app
