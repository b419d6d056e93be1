"""What the routes share: `Sources` (their interface to the agent), parameters, cached documents, answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, cast

from fastapi import Query, Request
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json
from starlette.responses import JSONResponse, Response

from gpumon.health.clear_request import ClearRequest, ClearResult
from gpumon.model import durations
from gpumon.model.allocation import Allocation
from gpumon.model.gpu_state import GpuState
from gpumon.model.reading import Page
from gpumon.model.request import AuditEntry, RequestResult
from gpumon.model.time_window import MAX_REASON_LENGTH, WindowRequest, WindowSelection
from gpumon.outputs.prometheus import Exposition
from gpumon.outputs.responses.base import HostTime, ResponseModel
from gpumon.probe.core.probes import PROBES, Probe
from gpumon.probe.core.result import ProbeRequest
from gpumon.server.access import Access
from gpumon.server.connections import Refusals
from gpumon.server.problem import Problem
from gpumon.state.report import Report
from gpumon.store.allocations import AllocationQuery
from gpumon.store.error_events import EventQuery, StoredEvent
from gpumon.store.probe_runs import RunPage, RunQuery
from gpumon.store.store_error import StoreError

T = TypeVar("T")
MAIN_LOOP_TIMEOUT_SECONDS = 20.0
"""Maximum seconds to wait for the main loop, which itself waits a shorter time for the store or its children."""
STORE_TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Values and callables that the routes use. A callable that needs the main loop or the store returns a Future."""

    host: str
    latest: Callable[[], Report]
    exposition: Mapping[Page, Callable[[], Exposition]]
    """For each page for Prometheus (/metrics and /metrics/links), the function that returns its content."""
    dcgm: Callable[[Report], str]
    """Returns the text of the page /metrics/dcgm, whose metrics are named as by dcgm-exporter, for a Report."""
    ready: Callable[[], bool]
    """Returns True after the first poll has ended or its deadline has passed, or if the whole node is released."""
    token: Callable[[], str | None]
    """Returns the token that permits changes, or None. It reads the token file, so that the token can be rotated."""
    access: Access
    refusals: Refusals
    allowed_hosts: frozenset[str]
    """Names that the Host header of a request may have, besides IP addresses. "*" allows any name."""
    allowed_hosts_to_read: frozenset[str]
    """The same for a request that changes nothing; "*" if remote hosts can connect, which may use other names."""
    request_probe: Callable[[str], Future[ProbeRequest]]
    """The future is done when the run is refused, or when the Report that `latest` returns contains it by its id."""
    start_window: Callable[[WindowRequest], Future[RequestResult]]
    """The future is done when the window is stored and has its full effect, or after a timeout."""
    end_windows: Callable[[WindowSelection], Future[RequestResult]]
    """The future is done when the change is stored, or cannot be stored."""
    clear_verdicts: Callable[[ClearRequest], Future[ClearResult]]
    """The future is done when the change is stored, or cannot be stored."""
    accept_inventory: Callable[[Collection[str]], Future[RequestResult]]
    """Accepts the state of the given GPUs and ports, or of all. The future is done when it is stored or refused."""
    find_events: Callable[[EventQuery], Future[tuple[StoredEvent, ...]]]
    """This future and those of the other `find_` functions raise StoreError if the store cannot be read."""
    find_runs: Callable[[RunQuery], Future[RunPage]]
    find_allocations: Callable[[AllocationQuery], Future[tuple[Allocation, ...]]]
    record_change: Callable[[AuditEntry], None]
    find_changes: Callable[[int], Future[tuple[AuditEntry, ...]]]
    """Reads the newest audit entries. The argument is their maximum number."""
    runbook_url: str | None
    """Base URL of the runbooks; None if the agent serves them itself."""
    wall: Callable[[], float]
    boot: Callable[[], float]


class Filter(BaseModel):
    """Base of the models of query parameters. A misspelled filter is an error, as it would select everything."""

    model_config = ConfigDict(extra="forbid")


class AuditedFilter(Filter):
    """Query parameter `reason`, which the audit records, of requests that change state or start work."""

    reason: str = Field("", max_length=MAX_REASON_LENGTH, description="Why. It is kept in the audit log.")


NoParameters = Annotated[Filter, Query()]
SINCE = Field(None, description="Only what is newer: 1h, RFC 3339, or seconds since the epoch.")
_MAX_SHOWN = 40


def duration_parameter(name: str, text: str) -> float:
    """Convert the value of parameter `name`, such as 90s or 1h30m, to seconds."""
    seconds = durations.seconds(text)
    if seconds is None:
        raise _invalid_parameter(name, text, "a duration such as 90s, 24h or 1h30m")
    return seconds


def moment_parameter(name: str, text: str | None, now: float) -> float | None:
    """Convert the value of parameter `name` (Unix time, RFC 3339, or a duration before `now`) to Unix time."""
    seconds = None if text is None else durations.moment(text, now)
    if text is not None and seconds is None:
        raise _invalid_parameter(name, text, "a duration before now (1h), RFC 3339, or seconds since the epoch")
    return seconds


def _invalid_parameter(name: str, text: str, wanted: str) -> Problem:
    detail = f"{name}={_shorten(text)!r} is invalid."
    return Problem(400, "Invalid parameter", detail, f"Give {name} as {wanted}.")


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def probe_parameter(text: str) -> Probe:
    if text in PROBES:
        return PROBES[text]
    names = list(PROBES)
    detail = f"There is no probe {_shorten(text)!r}."
    raise Problem(404, "Unknown probe", detail, f"Use one of: {', '.join(names)}.", probes=names)


def gpu_parameter(report: Report, text: str) -> GpuState:
    state = report.gpu(text)
    if state is not None:
        return state
    gpus = [f"{state.index} ({state.uuid})" for state in report.gpus]
    raise Problem(
        404,
        "Unknown GPU",
        f"There is no GPU {text!r} in this node's inventory.",
        f"Use one of: {', '.join(gpus)}." if gpus else "The inventory is empty: see /api/v1/node for the reason.",
        gpus=[{"gpu": state.index, "uuid": state.uuid} for state in report.gpus],
    )


class IndentedJson(JSONResponse):
    """A JSON response with indentation, so that people can read it."""

    def render(self, content: Any) -> bytes:
        return to_json(content, indent=2, inf_nan_mode="null") + b"\n"


class RenderedDocuments:
    """Cache of the last rendering of each document, which takes milliseconds: it is rendered once per Report."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._documents: dict[str, tuple[Report | None, bytes]] = {}

    def get(self, name: str, report: Report | None, render: Callable[[], bytes]) -> bytes:
        """Return the document, cached if it was rendered from this Report (None for one that never changes)."""
        rendered = self._documents.get(name)
        if rendered is not None and rendered[0] is report:
            return rendered[1]
        with self._lock:
            rendered = self._documents.get(name)
            if rendered is None or rendered[0] is not report:
                rendered = self._documents[name] = (report, render())
        return rendered[1]


def sources(request: Request) -> Sources:
    return cast("Sources", request.app.state.sources)


def rendered_documents(request: Request) -> RenderedDocuments:
    return cast("RenderedDocuments", request.app.state.rendered)


def render_once(request: Request, name: str, build: Callable[[Report], ResponseModel]) -> Response:
    """Return the JSON response, rendered once per Report. `name`: cache key. Not for coroutines: it may block."""
    latest = sources(request).latest()
    return cached(request, name, latest, lambda: bytes(IndentedJson(build(latest)).body), "application/json")


def cached(
    request: Request, name: str, report: Report | None, render: Callable[[], bytes], media_type: str = "text/html"
) -> Response:
    """Return a response with the document `name`, as `RenderedDocuments.get` returns it."""
    return Response(rendered_documents(request).get(name, report, render), media_type=media_type)


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
