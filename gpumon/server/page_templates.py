"""Renders the Jinja templates of the pages. The module is imported at the first request for a page, to save memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from gpumon.health.alert_texts import RUNBOOKS
from gpumon.outputs import formatting, node_text
from gpumon.outputs.node_text import gpu_warnings
from gpumon.outputs.problems import place
from gpumon.server import page_links, page_overview, page_probe
from gpumon.server.page_plot import plot


def render(template: str, context: dict[str, Any], version: Callable[[str], str]) -> str:
    """Return a page as HTML. `version` returns the hash of a static file, which the links to that file contain."""
    return _environment().get_template(template).render(context, version=version)


def with_code(text: str) -> Markup:
    """Return text as HTML. Text between backticks becomes a <code> element."""
    parts = [escape(part) for part in text.split("`")]
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if odd % 2 else part for odd, part in enumerate(parts)
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,  # text from a driver is never markup
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        overview=page_overview,
        formatting=formatting,
        link_text=node_text,
        page_links=page_links,
        headline=node_text.headline,
        excluded=node_text.exclusions,
        released=node_text.releases,
        maintenance=node_text.maintenance,
        holds=node_text.holds,
        place=place,
        plot=plot,
        gpu_warnings=gpu_warnings,
        page_probe=page_probe,
    )
    environment.filters["with_code"] = with_code
    environment.filters["link"] = lambda url: url if url.startswith(("https://", "http://", RUNBOOKS)) else ""
    return environment
