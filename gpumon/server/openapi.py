"""The OpenAPI document: FastAPI's document, in which every error is application/problem+json."""

from __future__ import annotations

from functools import cache
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from gpumon.outputs.responses.base import Document
from gpumon.server.problem import MEDIA_TYPE, ProblemDetails

DESCRIPTION = """\
State of the agent on this GPU host. No request causes a driver call: an answer comes from one frozen report, those of
the audit and the probe history from the store.

The names of readings are those of the metrics without their prefix, unit included. A reading that the GPU or its driver
does not provide is null, never 0. Times are RFC 3339 in UTC. Errors are problem+json with a remedy. A request that
starts work or changes state needs `Authorization: Bearer <token>` over TCP; the unix socket needs none, because the
kernel names the user."""
_PROBLEM = {MEDIA_TYPE: {"schema": {"$ref": f"#/components/schemas/{ProblemDetails.__name__}"}}}


def install(app: FastAPI) -> None:
    """Make the application serve an OpenAPI document in which every error is application/problem+json."""
    app.openapi = cache(lambda: _document(app))  # type: ignore[method-assign]


def operations(document: Document) -> list[tuple[str, str, Document]]:
    """Return the method, path and OpenAPI operation object of each route, in the order of the routes."""
    return [(method, path, item) for path, items in document["paths"].items() for method, item in items.items()]


def _document(app: FastAPI) -> Document:
    document: dict[str, Any] = get_openapi(
        title="gpumon", version=app.version, description=DESCRIPTION, routes=app.routes
    )
    schemas = document["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas[ProblemDetails.__name__] = ProblemDetails.model_json_schema()
    for _, _, operation in operations(document):
        responses = operation["responses"]
        responses.pop("422", None)
        responses["default"] = {"description": "An error, with a remedy."}
        for status, response in responses.items():
            if status == "default" or status >= "400":
                response["content"] = _PROBLEM
    return document
