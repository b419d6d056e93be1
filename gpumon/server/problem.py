"""Errors as application/problem+json (RFC 9457), each with a remedy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from gpumon.server.headers import secure

MEDIA_TYPE = "application/problem+json"
REMEDIES: Mapping[int, str] = {
    404: "See /docs for the addresses that exist.",
    405: "Use a method that the Allow header names.",
    413: "Send no body: nothing here takes a large one.",
    500: "This is a defect of gpumon. The agent's log holds the traceback: please report it.",
}


class Problem(Exception):  # noqa: N818 - the word of RFC 9457
    """An answer that is not the one asked for."""

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
        """A few words, stable: the title, and in the type for programs."""
        self.detail = detail
        self.remedy = remedy
        self.headers = dict(headers or {})
        self.more = more

    def response(self, scope: Scope) -> Response:
        body = json.dumps(self.document(scope["path"]), indent=2) + "\n"
        return Response(body, self.status, self.headers, MEDIA_TYPE)

    def document(self, path: str) -> dict[str, Any]:
        """The body of the answer to a request for this path."""
        return {
            "type": f"urn:gpumon:problem:{self.kind.lower().replace(' ', '-')}",
            "title": self.kind,
            "status": self.status,
            "detail": self.detail,
            "instance": path,
            "remedy": self.remedy,
            **self.more,
        }


def install(app: FastAPI) -> None:
    """Make every error of this application a problem."""
    app.add_exception_handler(Problem, _own)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(Exception, _defect)


async def _own(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)  # noqa: S101 - registered for it alone
    return error.response(request.scope)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for it alone
    status = HTTPStatus(error.status_code)
    headers = dict(error.headers or {})
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = _allowed(request)
    detail = f"{request.method} {request.url.path}: {status.phrase.lower()}."
    remedy = REMEDIES.get(status, "See /docs.")
    return Problem(status, status.phrase, detail, remedy, headers=headers).response(request.scope)


async def _validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for it alone
    wrong = [{"name": str(one["loc"][-1]), "in": str(one["loc"][0]), "message": one["msg"]} for one in error.errors()]
    detail = "; ".join(f"{one['name']}: {one['message']}" for one in wrong)
    remedy = "Correct or leave out what `errors` names; /docs says what each may be."
    return Problem(422, "Invalid parameter", detail, remedy, errors=wrong).response(request.scope)


async def _defect(request: Request, error: Exception) -> Response:
    detail = f"{type(error).__name__} while answering {request.method} {request.url.path}."
    response = Problem(500, "Internal error", detail, REMEDIES[500]).response(request.scope)
    secure(response.headers)  # it is sent from outside of the guard
    return response


def _allowed(request: Request) -> str:
    """Methods of all routes at this path; whoever answers GET answers HEAD."""
    routes = request.app.routes
    methods = [
        method
        for method in ("GET", "POST", "DELETE")
        if any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in routes)
    ]
    return ", ".join(methods).replace("GET", "GET, HEAD")
