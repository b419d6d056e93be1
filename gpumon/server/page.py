"""The status page and the reference page. They load nothing from another host."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import Response

from gpumon.outputs import formatting, link_text, node_summary, window_sentences
from gpumon.outputs.gpu_warnings import gpu_warnings
from gpumon.outputs.responses.report import ReportResponse
from gpumon.outputs.verdict_text import place
from gpumon.server import openapi, page_links, page_overview, page_probe
from gpumon.server.context import IndentedJson, host_time, sources
from gpumon.server.page_plot import plot
from gpumon.server.problem import Problem

router = APIRouter(include_in_schema=False)

HERE = Path(__file__).parent
TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
MAX_EVENTS = 10


@router.get("/")
async def page(request: Request) -> Response:
    """Return the whole status page."""
    return _html("page.html", _context(request))


@router.get("/live")
async def live(request: Request) -> Response:
    """Return the part of the page that its script refreshes."""
    return _html("live.html", _context(request))


@router.get("/docs")
async def docs(request: Request) -> Response:
    """Return the OpenAPI document as a page."""
    document = request.app.openapi()
    return _html("docs.html", {"document": document, "operations": openapi.operations(document)})


@router.get("/openapi.json")
async def openapi_document(request: Request) -> Response:
    return IndentedJson(request.app.openapi())


@router.get("/static/{name}")
async def static(name: str) -> Response:
    """Return a style sheet, script or icon. Links to it carry its version, so that browsers may cache it."""
    if name not in _files():
        raise Problem(404, "Not Found", f"There is no file {name!r}.", f"Existing files: {', '.join(_files())}.")
    kind = TYPES[Path(name).suffix]
    return Response(_files()[name], headers={"Content-Type": kind, "Cache-Control": "public, max-age=86400"})


def with_code(text: str) -> Markup:
    """Return text as HTML, with code elements for text between backticks."""
    parts = [escape(part) for part in text.split("`")]
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if odd % 2 else part for odd, part in enumerate(parts)
    )


def _context(request: Request) -> dict[str, Any]:
    report = ReportResponse.from_report(sources(request).latest(), host_time(request))
    return {"report": report.document(), "max_events": MAX_EVENTS}


def _html(template: str, context: dict[str, Any]) -> Response:
    return Response(_environment().get_template(template).render(context), media_type="text/html")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,  # text from a driver is never markup
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        overview=page_overview,
        formatting=formatting,
        link_text=link_text,
        page_links=page_links,
        headline=node_summary.headline,
        excluded=node_summary.exclusions,
        released=window_sentences.releases,
        maintenance=window_sentences.maintenance,
        holds=window_sentences.holds,
        place=place,
        plot=plot,
        gpu_warnings=gpu_warnings,
        page_probe=page_probe,
        version=_version,
    )
    environment.filters["with_code"] = with_code
    environment.filters["link"] = lambda url: url if url.startswith(("https://", "http://")) else ""
    return environment


@cache
def _files() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((HERE / "static").iterdir()) if path.suffix in TYPES}


def _version(name: str) -> str:
    """Return a hash of the file, so that a browser reloads a file that has changed."""
    return hashlib.sha256(_files()[name]).hexdigest()[:12]
