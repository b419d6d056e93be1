"""Code that the routes share: `Sources`, base models of parameters, cached documents, answers of the main loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Annotated, Any, TypeVar

from fastapi import Query, Request
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json
from starlette.responses import JSONResponse, Response

from gpumon.model.time_window import MAX_REASON_LENGTH
from gpumon.outputs.responses.base import HostTime, ResponseModel
from gpumon.server.problem import Problem
from gpumon.server.sources import Sources
from gpumon.state.report import Report
from gpumon.store.store_error import StoreError

T = TypeVar("T")
MAIN_LOOP_TIMEOUT_SECONDS = 20.0
"""Maximum seconds to wait for a change by the main loop, which itself waits a shorter time for the store or its
children.
"""
STORE_TIMEOUT_SECONDS = 5.0
"""Maximum seconds to wait for the store."""


class Filter(BaseModel):
    """Base of the models of query parameters.

    An unknown parameter is an error, because a misspelled filter would otherwise select everything.
    """

    model_config = ConfigDict(extra="forbid")


class AuditedFilter(Filter):
    """Query parameter `reason`, which the audit records, of requests that change state or start work."""

    reason: str = Field("", max_length=MAX_REASON_LENGTH, description="Why. It is kept in the audit log.")


NoParameters = Annotated[Filter, Query()]


class IndentedJson(JSONResponse):
    """A JSON response with indentation, so that people can read it."""

    def render(self, content: Any) -> bytes:
        return to_json(content, indent=2, inf_nan_mode="null") + b"\n"


class RenderedDocuments:
    """Cache of the last rendering of each document: each is rendered once per Report instead of once per request.

    Rendering takes milliseconds. While one thread renders, others that must render wait for it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._documents: dict[str, tuple[Report | None, bytes]] = {}

    def get(self, name: str, report: Report | None, render: Callable[[], bytes]) -> bytes:
        """Return the document `name`, from the cache if it was rendered from this Report, else from `render`.

        `report` is None for a document that never changes.
        """
        rendered = self._documents.get(name)
        if rendered is not None and rendered[0] is report:
            return rendered[1]
        with self._lock:
            rendered = self._documents.get(name)
            if rendered is None or rendered[0] is not report:
                rendered = self._documents[name] = (report, render())
        return rendered[1]


def sources(request: Request) -> Sources:
    given: Sources = request.app.state.sources
    return given


def rendered_documents(request: Request) -> RenderedDocuments:
    documents: RenderedDocuments = request.app.state.rendered
    return documents


def render_once(request: Request, name: str, build: Callable[[Report], ResponseModel]) -> Response:
    """Return the JSON response that `build` makes from the latest Report, rendered once per Report.

    `name` is the cache key. Do not call this function from a coroutine: it blocks the calling thread while another
    request renders.
    """
    latest = sources(request).latest()
    body = rendered_documents(request).get(name, latest, lambda: bytes(IndentedJson(build(latest)).body))
    return Response(body, media_type="application/json")


def host_time(request: Request) -> HostTime:
    given = sources(request)
    return HostTime(host=given.host, wall=given.wall(), boot=given.boot())


async def main_loop_answer(future: Future[T], seconds: float) -> T:
    """Return the result that the main loop sets in the future. Raise a Problem if it sets none within `seconds`."""
    waiting = asyncio.wrap_future(future)
    await asyncio.wait((waiting,), timeout=seconds)
    if not waiting.done():
        detail = f"The main loop did not answer within {seconds:.0f} s."
        raise Problem(503, "Agent busy", detail, "Retry. If it persists, see the agent's log.")
    return waiting.result()


async def completes(reading: Awaitable[None]) -> bool:
    """Wait until all has been read from the store. Return False if the store fails or does not answer in time."""
    try:
        await asyncio.wait_for(reading, STORE_TIMEOUT_SECONDS)
    except (StoreError, asyncio.TimeoutError):
        return False
    return True
