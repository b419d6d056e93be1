"""Checks of requests: Host, Origin and access before every route; the authorisation of changes and their audit."""

from __future__ import annotations

import ipaddress
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated
from urllib.parse import parse_qs

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpumon.model.request import AuditEntry
from gpumon.server.access import is_token
from gpumon.server.connections import KEPT_PATHS, Peer
from gpumon.server.context import Sources
from gpumon.server.problem import Problem, secure

ANY = "*"
LOCAL = ("localhost", "localhost.localdomain", "ip6-localhost")
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
AUTHORIZED = "authorized"
"""Key in the state of a request. Its value is True if the request may change state."""
MAX_AUDIT_LENGTH = 500
"""Maximum number of characters of a request, and of its reason, that the audit records."""
HOW_TO_AUTHORIZE = (
    "Send `Authorization: Bearer <token>` with the token from the agent's token file (--web.token-file). "
    "On this host use the commands of gpumon, which need no token."
)
TOKEN_ERRORS: Mapping[int, str] = {
    401: "No token, or a wrong one.",
    403: "The request comes from a page of another origin, or from a local user who may not change state.",
    503: "The main loop does not answer, or the agent has no token.",
}
"""Descriptions of the errors, by HTTP status, that every route with the dependency `needs_token` can return."""


class Guard:
    """ASGI middleware around all routes.

    It refuses requests, adds security headers to responses, and records in the audit each authorized request with a
    method other than SAFE_METHODS, whatever the status of its response.
    """

    def __init__(self, app: ASGIApp, sources: Sources) -> None:
        self._app = app
        self._sources = sources

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                if scope["method"] not in SAFE_METHODS and scope["state"].get(AUTHORIZED):
                    self._sources.record_change(_audit_entry(scope, message["status"]))
                headers = MutableHeaders(scope=message)
                secure(headers)
                headers.update(self._sources.access.config.http_server_config.headers)
            await send(message)

        problem = self._refusal(scope) or await self._sources.access.refusal(scope)
        if problem is not None:
            await problem.response(scope)(scope, receive, send_secured)
        elif scope["method"] == "HEAD":  # routes answer only GET; uvicorn omits the body for HEAD
            await self._app({**scope, "method": "GET"}, receive, send_secured)
        else:
            await self._app(scope, receive, send_secured)

    def _refusal(self, scope: Scope) -> Problem | None:
        if scope["state"]["connection"].is_crowded() and not scope["path"].startswith(KEPT_PATHS):
            detail = "Too many requests are in progress; the connections that are left are kept for /metrics."
            retry = {"Retry-After": "1", "Connection": "close"}
            return Problem(503, "Too many requests", detail, "Retry.", headers=retry)
        headers = Headers(scope=scope)
        host, origin = headers.get("host"), headers.get("origin")
        reads = scope["method"] in SAFE_METHODS
        names = self._sources.allowed_hosts_to_read if reads else self._sources.allowed_hosts
        if host is not None and not is_allowed(host, names):
            remedy = "Use the IP address or the name of the host, or add the name to web.allowed_hosts."
            return Problem(421, "Host not allowed", f"{host!r} is not a name of this host.", remedy)
        own = (None,) if host is None else (None, f"http://{host}", f"https://{host}")
        if not reads and origin not in own:
            detail = f"A page of {origin!r} sent a request that changes state."
            remedy = "Send it from this agent's own pages, or from a program that sends no Origin header."
            return Problem(403, "Origin not allowed", detail, remedy)
        return None


def _audit_entry(scope: Scope, status: int) -> AuditEntry:
    peer: Peer | None = scope["state"]["connection"].peer
    query = scope["query_string"].decode(errors="replace")
    given = parse_qs(query)
    return AuditEntry(
        wall=time.time(),
        request=f"{scope['method']} {scope['path']}{'?' if query else ''}{query}"[:MAX_AUDIT_LENGTH],
        reason=next(iter(given.get("reason", []) + given.get("note", [])), "")[:MAX_AUDIT_LENGTH],
        client=(scope["client"] or ("unknown",))[0] if peer is None else "local",
        uid=None if peer is None else peer.uid,
        login_uid=None if peer is None else peer.login_uid,
        status=status,
    )


def _check_token(request: Request, sources: Sources) -> None:
    token, given = sources.token(), request.headers.get("authorization")
    if token is None:
        detail = "The agent has no token, so it refuses requests that start work or change state."
        remedy = "The token file (--web.token-file) is missing or cannot be read: see the notices of the agent."
        raise Problem(503, "No token", detail, remedy)
    challenge = 'Bearer realm="gpumon"'
    if given is None:
        headers = {"WWW-Authenticate": challenge}
        raise Problem(401, "Token needed", "This request needs the token.", HOW_TO_AUTHORIZE, headers=headers)
    if not is_token(given, token):
        address = request.client.host if request.client else "an unknown address"
        sources.refusals.add("token", f"a request from {address} has a wrong token")
        headers = {"WWW-Authenticate": f'{challenge}, error="invalid_token"'}
        raise Problem(401, "Wrong token", "The token does not match.", HOW_TO_AUTHORIZE, headers=headers)


async def _require_token(
    request: Request,
    _: Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False, scheme_name="token"))],
) -> None:
    """Raise a Problem unless the client may change the state of the agent; else mark the request as AUTHORIZED."""
    sources = request.app.state.sources
    peer: Peer | None = request.scope["state"]["connection"].peer
    if peer is None:
        _check_token(request, sources)
    elif not peer.may_write:
        sources.refusals.add("user", f"uid {peer.uid} may not change state")
        remedy = f"Run as root, or as a member of the group with id {os.getegid()}."
        raise Problem(403, "Not permitted", f"uid {peer.uid} may not change the state of the agent.", remedy)
    request.scope["state"][AUTHORIZED] = True


needs_token = Depends(_require_token)


def is_authorized(request: Request) -> bool:
    """Return True if the client may read data that is not public. The rule is the same as for changes."""
    peer: Peer | None = request.scope["state"]["connection"].peer
    if peer is not None:
        return peer.may_write
    token, given = request.app.state.sources.token(), request.headers.get("authorization")
    return given is not None and is_token(given, token)


def own_names(listen_host: str, etc: Path = Path("/etc")) -> frozenset[str]:
    """Return localhost, the listen address, and the names of this host, in lower case, without a DNS query."""
    name = socket.gethostname()
    short = name.partition(".")[0]
    names = {*LOCAL, listen_host, name, short}
    for words in map(str.split, _lines(etc / "resolv.conf")):
        if words[:1] in (["search"], ["domain"]):
            names |= {f"{short}.{domain}" for domain in words[1:] if domain != "."}
    for line in _lines(etc / "hosts"):
        aliases = set(line.partition("#")[0].split()[1:])
        names |= aliases if aliases & {name, short} else set()
    return frozenset(item.lower().removesuffix(".") for item in names if item)


def is_allowed(header: str, names: frozenset[str]) -> bool:
    """Return True if a Host header has one of these names or an IP address, which DNS rebinding cannot use."""
    host = host_of(header)
    return ANY in names or host in names or _is_address(host)


def is_loopback(listen_host: str) -> bool:
    """Return True if only programs on this host can connect to this listen address."""
    return listen_host == "localhost" or (_is_address(listen_host) and ipaddress.ip_address(listen_host).is_loopback)


def host_of(header: str) -> str:
    """Return the host name of a Host header in lower case, without port, brackets and final dot."""
    bracketed, closing, _ = header.partition("]")
    host = bracketed.removeprefix("[") if closing else header.partition(":")[0]
    return host.lower().removesuffix(".")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
