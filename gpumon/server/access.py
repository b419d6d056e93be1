"""Access control for requests over TCP: names in client certificates, users with passwords, and tokens."""

from __future__ import annotations

import contextlib
import logging
import ssl
from collections.abc import Callable
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import Scope

from gpumon.server.connections import Connection, Refusals
from gpumon.server.credentials import Passwords, TooManyPasswordsError, basic_credentials, is_token
from gpumon.server.problem import Problem
from gpumon.server.web_config import WebConfig, WebConfigError, files, read, tls_context

OPEN_PATHS = ("/-/",)
"""Prefixes of the paths that every client may read: the liveness and readiness routes."""
_log = logging.getLogger("gpumon.server")


class Access:
    """Decides whether a request over TCP may be answered. It never refuses a request over the unix socket."""

    def __init__(
        self,
        web_config: Path | None,
        refusals: Refusals,
        *,
        token: Callable[[], str | None],
        read_token: Callable[[], str | None] | None,
    ) -> None:
        """Read the web configuration. Raise WebConfigError if it cannot be used.

        `token` returns the token that permits changes, and `read_token` the token that permits reading; both return
        None if their file cannot be read. `read_token` itself is None if no token for reading is configured.
        """
        self._path = web_config
        self._refusals = refusals
        self._token = token
        self._read_token = read_token
        self._passwords = Passwords()
        self.config, self.tls = (WebConfig(), None) if web_config is None else _load(web_config)
        self._signature = self._sign()
        self.notice: str | None = None
        """Reason why the changed files of the web configuration are not in use; None if the current files are in use.
        """

    def refresh(self) -> bool:
        """Read the web configuration again if it or a file that it names has changed. Return True if it was read.

        The caller must then use the new TLS context. If the files cannot be used, the error is logged once, the
        previous configuration remains in use, and the result is False. The files are then read at each call, because
        the new configuration may name other files.
        """
        if self._path is None or (self.notice is None and self._sign() == self._signature):
            return False
        try:
            self.config, self.tls = _load(self._path)
        except WebConfigError as error:
            notice = f"the web configuration of before remains active: {error}"
            if notice != self.notice:
                _log.error(notice)
            self.notice = notice
            return False
        self.notice, self._signature = None, self._sign()
        _log.info("web configuration read", extra={"path": str(self._path), "tls": self.tls is not None})
        return True

    def _sign(self) -> list[tuple[int, int, int]]:
        """Return the modification time, inode and size of each file of the web configuration, to detect a change."""
        signature: list[tuple[int, int, int]] = []
        for path in () if self._path is None else files(self._path, self.config):
            with contextlib.suppress(OSError):
                status = path.stat()
                signature.append((status.st_mtime_ns, status.st_ino, status.st_size))
        return signature

    async def refusal(self, scope: Scope) -> Problem | None:
        """Return the error with which to refuse this request; None if the request may be answered."""
        connection, config = scope["state"]["connection"], self.config
        if connection.peer is not None or scope["path"].startswith(OPEN_PATHS):
            return None
        tls = config.tls_server_config
        if tls is not None and tls.client_allowed_sans and not _is_allowed(connection, tls.client_allowed_sans):
            detail = "The certificate of the client has none of the names in client_allowed_sans."
            return Problem(403, "Certificate not allowed", detail, "Use another certificate, or add its name.")
        if not config.basic_auth_users and self._read_token is None:
            return None
        return await self._without_credentials(scope)

    async def _without_credentials(self, scope: Scope) -> Problem | None:
        given = Headers(scope=scope).get("authorization", "")
        tokens = (self._token(), None if self._read_token is None else self._read_token())
        if any(is_token(given, token) for token in tokens):
            return None
        credentials, (client, *_) = basic_credentials(given), scope.get("client") or ("an unknown address",)
        try:
            if credentials and await self._passwords.verify(*credentials, self.config.basic_auth_users, client):
                return None
        except TooManyPasswordsError:
            return Problem(503, "Too many passwords", "Too many passwords are being verified.", "Retry.")
        if given:
            self._refusals.add("credentials", f"a request from {client} has a wrong password or token")
        return self._challenge(given)

    def _challenge(self, given: str) -> Problem:
        users = bool(self.config.basic_auth_users)
        return Problem(
            401,
            "Wrong credentials" if given else "Credentials needed",
            "This agent answers only clients with a password or a token.",
            "Send a user and password of the web configuration, or `Authorization: Bearer <token>` with the token for "
            "reading (web.read_token_file). On this host the commands of gpumon need neither.",
            headers={"WWW-Authenticate": 'Basic realm="gpumon"' if users else 'Bearer realm="gpumon"'},
        )


def _load(path: Path) -> tuple[WebConfig, ssl.SSLContext | None]:
    config = read(path)
    return config, tls_context(path, config)


def _is_allowed(connection: Connection, names: tuple[str, ...]) -> bool:
    """Return True if the client has sent a certificate with one of these subject alternative names."""
    certificate = connection.transport.get_extra_info("peercert") or {}
    return any(name in names for _, name in certificate.get("subjectAltName", ()))
