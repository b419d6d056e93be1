"""The status page, the API reference page and the runbooks. They load nothing from other hosts.

Routes that read files (templates, styles, a module imported late) are not coroutines. FastAPI runs them in a thread, so
that a hung disk blocks only the page and not /metrics.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from gpumon.config.configuration_error import did_you_mean
from gpumon.health.alert_texts import RUNBOOKS, alert_texts, runbook_url
from gpumon.outputs import formatting, node_text
from gpumon.outputs.problems import place
from gpumon.outputs.responses.base import Document
from gpumon.outputs.responses.report import ReportResponse
from gpumon.outputs.runbook import runbooks
from gpumon.probe.core.wording import index_ranges
from gpumon.server.context import IndentedJson, cached, host_time, sources
from gpumon.server.problem import Problem

if TYPE_CHECKING:
    from jinja2 import Environment

router = APIRouter(include_in_schema=False)

HERE = Path(__file__).parent
TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
MAX_EVENTS = 10


@router.get("/")
def page(request: Request) -> Response:
    return _live_html(request, "page.html")


@router.get("/live")
def live(request: Request) -> Response:
    """Return the part of the status page that changes, as HTML. The script of the page fetches it repeatedly."""
    return _live_html(request, "live.html")


@router.get("/docs")
def docs(request: Request) -> Response:

    def render() -> bytes:
        document = request.app.openapi()
        return html("docs.html", {"document": document, "operations": operations(document)})

    return cached(request, "docs.html", None, render)


@router.get("/openapi.json")
def openapi_document(request: Request) -> Response:
    def render() -> bytes:
        return bytes(IndentedJson(request.app.openapi()).body)

    return cached(request, "openapi.json", None, render, "application/json")


@router.get("/static/{name}")
def static(name: str) -> Response:
    """Return a style sheet, script or icon. Browsers may cache it, because links to it contain its version."""
    if name not in static_files():
        raise Problem(404, "Not Found", f"There is no file {name!r}.", f"Existing files: {', '.join(static_files())}.")
    kind = TYPES[Path(name).suffix]
    return Response(static_files()[name], headers={"Content-Type": kind, "Cache-Control": "public, max-age=86400"})


def operations(document: Document) -> list[tuple[str, str, Document]]:
    """Return the method, path and OpenAPI operation object of each route, in the order of the routes."""
    return [(method, path, item) for path, items in document["paths"].items() for method, item in items.items()]


def _live_html(request: Request, template: str) -> Response:
    report = sources(request).latest()

    def render() -> bytes:
        document = ReportResponse.from_report(report, host_time(request)).document()
        return html(template, {"report": document, "max_events": MAX_EVENTS})

    return cached(request, template, report, render)


def html(template: str, context: dict[str, Any]) -> bytes:
    """Return an HTML page in UTF-8, rendered from a Jinja template with the variables in `context`."""
    return _environment().get_template(template).render(context).encode()


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415 - 3 MB, which most never need

    from gpumon.server import page_links, page_overview, page_plot, page_probe  # noqa: PLC0415 - as rarely needed

    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,  # text from a driver is never markup
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        version=_version,
        overview=page_overview,
        formatting=formatting,
        node_text=node_text,
        index_ranges=index_ranges,
        page_links=page_links,
        place=place,
        plot=page_plot.plot,
        page_probe=page_probe,
    )
    environment.filters["with_code"] = with_code
    environment.filters["link"] = lambda url: url if url.startswith(("https://", "http://", RUNBOOKS)) else ""
    return environment


def with_code(text: str) -> str:
    """Return text as HTML. Text between backticks becomes a <code> element."""
    from markupsafe import Markup, escape  # noqa: PLC0415 - as rarely needed

    parts = [escape(part) for part in text.split("`")]
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if odd % 2 else part for odd, part in enumerate(parts)
    )


@cache
def static_files() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((HERE / "static").iterdir()) if path.suffix in TYPES}


def _version(name: str) -> str:
    """Return a hash of a static file. Links to the file contain it, so that browsers reload a changed file."""
    return hashlib.sha256(static_files()[name]).hexdigest()[:12]


@router.get(RUNBOOKS)
def index(request: Request) -> Response:
    return cached(request, RUNBOOKS, None, _runbook_page)


@router.get(f"{RUNBOOKS}/{{name}}")
def runbook(request: Request, name: str) -> Response:
    """Return the runbook of an alert. If `alerts.runbook_url` is set, redirect to the runbook below that URL."""
    section = {rule.name: rule.section for rule in alert_texts()}.get(name)
    if section is None:
        raise Problem(404, "Not Found", f"There is no alert {name!r}.", did_you_mean(name, runbooks()))
    base = sources(request).runbook_url
    if base is not None:
        return RedirectResponse(runbook_url(section, base))
    return cached(request, f"runbook {section}", None, lambda: _runbook_page(section))


def static_pages() -> Iterator[tuple[str, bytes]]:
    """Yield the path and content of each file to export: index.html, and NAME/index.html for each runbook."""
    style = static_files()["gpumon.css"].decode()
    yield "index.html", _runbook_page(style=style)
    for name in runbooks():
        yield f"{name}/index.html", _runbook_page(name, style=style)


def _runbook_page(name: str = "", style: str = "") -> bytes:
    root = "" if style else f"{RUNBOOKS}/"
    context = {"runbook": runbooks().get(name), "runbooks": runbooks(), "style": style, "root": root}
    return html("runbook.html", context)
