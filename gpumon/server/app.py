"""The application: everything it serves comes from the sources it is given."""

from __future__ import annotations

from fastapi import FastAPI

from gpumon import __version__
from gpumon.server import (
    acknowledge,
    api,
    events,
    hold,
    inventory,
    maintenance,
    metrics,
    page,
    probe,
    problem,
    reference,
    release,
    runs,
)
from gpumon.server.guard import Guard
from gpumon.server.sources import Sources


def create_app(sources: Sources) -> FastAPI:
    """All routes, behind the guard."""
    app = FastAPI(
        version=__version__,
        docs_url=None,  # FastAPI's own pages load scripts from the internet, which a GPU host does not have
        redoc_url=None,
        redirect_slashes=False,  # some scrapers do not follow, and lose everything without a word
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.sources = sources
    for part in (metrics, probe, hold, runs, api, acknowledge, events, inventory, release, maintenance, page):
        app.include_router(part.router)
    problem.install(app)
    reference.install(app)
    app.add_middleware(Guard, allowed_hosts=sources.allowed_hosts)
    return app
