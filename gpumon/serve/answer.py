"""What every route needs: the sources of this server, and a document as a response."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import Request
from starlette.responses import Response

from gpumon.outputs.document import Stamp
from gpumon.serve.sources import Sources


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
