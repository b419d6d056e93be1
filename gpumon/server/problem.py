"""Error responses as application/problem+json (RFC 9457), each with a remedy, and the headers of every response."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from gpumon.probe.core.remedies import remedy

MAX_PATH = 200
MEDIA_TYPE = "application/problem+json"
REMEDIES: Mapping[int, str] = {
    404: "See /docs for the paths that exist.",
    405: "Use a method that the Allow header names.",
    413: "Send no body.",
    500: "This is a bug in gpumon. Please report it with the traceback in the agent's log.",
}
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class ProblemDetails(BaseModel):
    """Body of every error response (RFC 9457). Some errors have further members."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(description="Stable name of the kind of error, a URN.")
    title: str = Field(description="Short name of the kind of error.")
    status: int = Field(description="HTTP status.")
    detail: str = Field(description="What is wrong with this request.")
    instance: str = Field(description="Path of the request.")
    remedy: str = Field(description="What to do about it.")


def errors(descriptions: Mapping[int, str]) -> dict[int | str, dict[str, Any]]:
    """Convert descriptions of a route's errors, by HTTP status, to the argument `responses` of FastAPI routes."""
    return {status: {"description": text} for status, text in descriptions.items()}


class Problem(Exception):  # noqa: N818 - the term of RFC 9457
    """An error that the server answers as application/problem+json. `more`: further members of the body."""

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        remedy: str,
        *,
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.kind = kind
        """Stable name of the kind of error, from which the members `title` and `type` of the body are made."""
        self.detail = detail
        self.remedy = remedy
        self.headers = dict(headers or {})
        self.more = more

    def response(self, scope: Scope) -> Response:
        body = ProblemDetails(
            type=f"urn:gpumon:problem:{self.kind.lower().replace(' ', '-')}",
            title=self.kind,
            status=self.status,
            detail=self.detail,
            instance=_cut(scope["path"]),
            remedy=self.remedy,
            **self.more,
        ).model_dump(mode="json")
        return Response(json.dumps(body, indent=2) + "\n", self.status, self.headers, MEDIA_TYPE)


def _cut(path: str) -> str:
    return path if len(path) <= MAX_PATH else f"{path[:MAX_PATH]}..."


async def _problem(request: Request, error: Problem) -> Response:
    return error.response(request.scope)


async def _http(request: Request, error: HTTPException) -> Response:
    status = HTTPStatus(error.status_code)
    headers = dict(error.headers or {})
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        methods = [
            method
            for method in ("GET", "POST", "DELETE")
            if any(each.matches({**request.scope, "method": method})[0] is Match.FULL for each in request.app.routes)
        ]
        headers["Allow"] = ", ".join(methods).replace("GET", "GET, HEAD")  # HEAD is allowed wherever GET is
    detail = f"{request.method} {_cut(request.url.path)}: {status.phrase.lower()}."
    remedy = REMEDIES.get(status, "See /docs.")
    return Problem(status, status.phrase, detail, remedy, headers=headers).response(request.scope)


async def _validation(request: Request, error: RequestValidationError) -> Response:
    wrong = [
        {"name": str(item["loc"][-1]), "in": str(item["loc"][0]), "message": item["msg"]} for item in error.errors()
    ]
    detail = "; ".join(f"{item['name']}: {item['message']}" for item in wrong)
    remedy = "Correct or leave out the parameters in `errors`; /docs describes them."
    return Problem(422, "Invalid parameter", detail, remedy, errors=wrong).response(request.scope)


async def _bug(request: Request, error: Exception) -> Response:
    detail = f"{type(error).__name__} while answering {request.method} {_cut(request.url.path)}."
    response = Problem(500, "Internal error", detail, remedy(str(error)) or REMEDIES[500]).response(request.scope)
    secure(response.headers)  # this response does not pass through the Guard, which adds the headers
    return response


HANDLERS: dict[int | type[Exception], Callable[[Request, Any], Coroutine[Any, Any, Response]]] = {
    Problem: _problem,
    HTTPException: _http,
    RequestValidationError: _validation,
    Exception: _bug,
}
"""Functions that answer errors as application/problem+json, by the type of the exception."""


def secure(headers: MutableHeaders) -> None:
    """Add the security headers, and Cache-Control: no-store unless the response sets Cache-Control itself."""
    for name, value in SECURITY_HEADERS.items():
        headers[name] = value
    headers.setdefault("Cache-Control", "no-store")
