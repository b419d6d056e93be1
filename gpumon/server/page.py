"""The status page and the API reference page. They load nothing from other hosts.

Routes that read files (templates, styles, a module imported late) are not coroutines. FastAPI runs them in a thread, so
that a hung disk blocks only the page and not /metrics.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from gpumon.outputs.responses.report import ReportResponse
from gpumon.server import openapi
from gpumon.server.context import IndentedJson, host_time, rendered_documents, sources
from gpumon.server.problem import Problem

router = APIRouter(include_in_schema=False)

HERE = Path(__file__).parent
TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
MAX_EVENTS = 10


@router.get("/")
def page(request: Request) -> Response:
    """Return the whole status page as HTML."""
    return _live_html(request, "page.html")


@router.get("/live")
def live(request: Request) -> Response:
    """Return the part of the status page that changes, as HTML. The script of the page fetches it repeatedly."""
    return _live_html(request, "live.html")


@router.get("/docs")
def docs(request: Request) -> Response:
    """Return the OpenAPI document as an HTML page."""

    def render() -> bytes:
        document = request.app.openapi()
        return html("docs.html", {"document": document, "operations": openapi.operations(document)})

    return Response(rendered_documents(request).get("docs.html", None, render), media_type="text/html")


@router.get("/openapi.json")
def openapi_document(request: Request) -> Response:
    body = rendered_documents(request).get(
        "openapi.json", None, lambda: bytes(IndentedJson(request.app.openapi()).body)
    )
    return Response(body, media_type="application/json")


@router.get("/static/{name}")
def static(name: str) -> Response:
    """Return a style sheet, script or icon. Browsers may cache it, because links to it contain its version."""
    if name not in static_files():
        raise Problem(404, "Not Found", f"There is no file {name!r}.", f"Existing files: {', '.join(static_files())}.")
    kind = TYPES[Path(name).suffix]
    return Response(static_files()[name], headers={"Content-Type": kind, "Cache-Control": "public, max-age=86400"})


def _live_html(request: Request, template: str) -> Response:
    report = sources(request).latest()

    def render() -> bytes:
        document = ReportResponse.from_report(report, host_time(request)).document()
        return html(template, {"report": document, "max_events": MAX_EVENTS})

    return Response(rendered_documents(request).get(template, report, render), media_type="text/html")


def html(template: str, context: dict[str, Any]) -> bytes:
    """Return an HTML page in UTF-8, rendered from a Jinja template with the variables in `context`."""
    from gpumon.server import page_templates  # noqa: PLC0415 - takes 3 MB, which most agents never need

    return page_templates.render(template, context, version=_version).encode()


@cache
def static_files() -> dict[str, bytes]:
    """Return the content of each style sheet, script and icon, by file name."""
    return {path.name: path.read_bytes() for path in sorted((HERE / "static").iterdir()) if path.suffix in TYPES}


def _version(name: str) -> str:
    """Return a hash of a static file. Links to the file contain it, so that browsers reload a changed file."""
    return hashlib.sha256(static_files()[name]).hexdigest()[:12]
