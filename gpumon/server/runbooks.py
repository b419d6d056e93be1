"""HTML pages of the runbooks. The agent serves them, or `static_pages` exports them for another web server."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from gpumon.config.configuration_error import did_you_mean
from gpumon.health.alert_texts import RUNBOOKS, alert_texts, runbook_url
from gpumon.outputs.runbook import runbooks
from gpumon.server.context import rendered_documents, sources
from gpumon.server.page import html, static_files
from gpumon.server.problem import Problem

router = APIRouter(prefix=RUNBOOKS, include_in_schema=False)


@router.get("")
def index(request: Request) -> Response:
    """Return the list of all runbooks."""
    return Response(rendered_documents(request).get(RUNBOOKS, None, _page), media_type="text/html")


@router.get("/{name}")
def runbook(request: Request, name: str) -> Response:
    """Return the runbook of an alert. If `alerts.runbook_url` is set, redirect to the runbook below that URL."""
    section = {rule.name: rule.section for rule in alert_texts()}.get(name)
    if section is None:
        raise Problem(404, "Not Found", f"There is no alert {name!r}.", did_you_mean(name, runbooks()))
    base = sources(request).runbook_url
    if base is not None:
        return RedirectResponse(runbook_url(section, base))
    return Response(
        rendered_documents(request).get(f"runbook {section}", None, lambda: _page(section)), media_type="text/html"
    )


def static_pages() -> Iterator[tuple[str, bytes]]:
    """Yield the path and content of each file to export: index.html, and NAME/index.html for each runbook."""
    style = static_files()["gpumon.css"].decode()
    yield "index.html", _page(style=style)
    for name in runbooks():
        yield f"{name}/index.html", _page(name, style=style)


def _page(name: str = "", style: str = "") -> bytes:
    """Return the HTML page of a runbook; without `name`, the list of all. `style`: CSS to include in a static page."""
    root = "" if style else f"{RUNBOOKS}/"
    context = {"runbook": runbooks().get(name), "runbooks": runbooks(), "style": style, "root": root}
    return html("runbook.html", context)
