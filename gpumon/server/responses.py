"""What every route needs: the sources of this server, what the main loop answers, and a document as a response."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from fastapi import Request
from starlette.responses import Response

from gpumon.outputs.document import Stamp
from gpumon.server.problem import Problem
from gpumon.server.sources import Sources

T = TypeVar("T")


def sources(request: Request) -> Sources:
    found: Sources = request.app.state.sources
    return found


def stamp(request: Request) -> Stamp:
    """Here and now."""
    given = sources(request)
    return Stamp(host=given.host, wall=given.wall(), boot=given.boot())


def reply(document: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """JSON, indented: it is read by people as often as by programs, and costs 2 ms for eight GPUs at most."""
    body = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return Response(body, status, headers, "application/json")


async def awaited(future: Future[T], patience: float) -> T:
    """What the main loop says to a request, within this many seconds."""
    waiting = asyncio.wrap_future(future)
    await asyncio.wait((waiting,), timeout=patience)
    if not waiting.done():
        raise no_answer(patience)
    return waiting.result()


def no_answer(patience: float) -> Problem:
    detail = f"The main loop did not answer within {patience:.0f} s."
    return Problem(503, "Agent busy", detail, "Ask again; see the log.")
