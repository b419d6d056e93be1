"""The page for people, and the reference page. Rendered here, without anything from another host."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import Response

from gpumon.outputs import connections, hold, node_summary, words
from gpumon.outputs.health import place
from gpumon.outputs.maintenance import sentences
from gpumon.outputs.remarks import remarks
from gpumon.outputs.responses.report import ReportResponse
from gpumon.server import links, openapi, probe_view, view
from gpumon.server.context import IndentedJson, host_time, sources
from gpumon.server.plot import plot
from gpumon.server.problem import Problem

router = APIRouter(include_in_schema=False)

HERE = Path(__file__).parent
TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
EVENTS_SHOWN = 10


@router.get("/")
async def page(request: Request) -> Response:
    """The whole page."""
    return _html("page.html", _facts(request))


@router.get("/live")
async def live(request: Request) -> Response:
    """The part of the page that changes, for the page's script."""
    return _html("live.html", _facts(request))


@router.get("/docs")
async def docs(request: Request) -> Response:
    """The OpenAPI document as a page."""
    described = request.app.openapi()
    return _html("docs.html", {"described": described, "operations": openapi.operations(described)})


@router.get("/openapi.json")
async def openapi_document(request: Request) -> Response:
    return IndentedJson(request.app.openapi())


@router.get("/static/{name}")
async def static(name: str) -> Response:
    """One of the few files beside the page; named with their version, so that a browser may keep them."""
    if name not in _files():
        raise Problem(404, "Not Found", f"There is no file {name!r}.", f"There are: {', '.join(_files())}.")
    kind = TYPES[Path(name).suffix]
    return Response(_files()[name], headers={"Content-Type": kind, "Cache-Control": "public, max-age=86400"})


def prose(text: str) -> Markup:
    """Text in which what stands between backticks is code."""
    parts = [escape(part) for part in text.split("`")]
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if odd % 2 else part for odd, part in enumerate(parts)
    )


def _facts(request: Request) -> dict[str, Any]:
    report = ReportResponse.from_report(sources(request).latest(), host_time(request))
    return {"report": report.document(), "events_shown": EVENTS_SHOWN}


def _html(template: str, facts: dict[str, Any]) -> Response:
    return Response(_environment().get_template(template).render(facts), media_type="text/html")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,  # what a driver or a GPU's name says is text, never markup
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        view=view,
        words=words,
        connections=connections,
        links=links,
        headline=node_summary.headline,
        excluded=node_summary.exclusions,
        released=node_summary.releases,
        maintenance=sentences,
        held=hold.sentences,
        place=place,
        plot=plot,
        remarks=remarks,
        runs=probe_view,
        version=_version,
    )
    environment.filters["pretty"] = lambda value: json.dumps(value, indent=2, ensure_ascii=False)
    environment.filters["prose"] = prose
    environment.filters["link"] = lambda url: url if url.startswith(("https://", "http://")) else ""
    return environment


@cache
def _files() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((HERE / "static").iterdir()) if path.suffix in TYPES}


def _version(name: str) -> str:
    """Changes with the file, so that a browser never shows an old one."""
    return hashlib.sha256(_files()[name]).hexdigest()[:12]
