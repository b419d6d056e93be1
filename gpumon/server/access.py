"""Access control for requests over TCP: names in client certificates, users with passwords, and tokens."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import logging
import ssl
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import Scope

from gpumon.server.connections import Connection, Refusals
from gpumon.server.problem import Problem
from gpumon.server.web_config import WebConfig, WebConfigError, files, read, tls_context

OPEN_PATHS = ("/-/",)
"""Prefixes of the paths that every client may read: the liveness and readiness routes."""
MAX_WAITING = 16
"""Maximum number of passwords that wait to be verified. Each verification takes tens of milliseconds of one core."""
MAX_WAITING_OF_CLIENT = 2
"""Maximum number that wait for one client address, so that a flood of wrong passwords does not lock out others."""
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
        """Why the changed files of the web configuration are not in use; None if they are."""

    def refresh(self) -> bool:
        """Read the web configuration again if it or a file that it names has changed. Return True if it was read.

        If the files cannot be used, the previous configuration remains in use, and the files are read at each call,
        because the new configuration may name other files.
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
        connection: Connection = scope["state"]["connection"]
        config = self.config
        if connection.peer is not None or scope["path"].startswith(OPEN_PATHS):
            return None
        names = () if config.tls_server_config is None else config.tls_server_config.client_allowed_sans
        certificate = connection.transport.get_extra_info("peercert") or {}
        if names and not any(name in names for _, name in certificate.get("subjectAltName", ())):
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
        return Problem(
            401,
            "Wrong credentials" if given else "Credentials needed",
            "This agent answers only clients with a password or a token.",
            "Send a user and password of the web configuration, or `Authorization: Bearer <token>` with the token for "
            "reading (web.read_token_file). On this host the commands of gpumon need neither.",
            headers={
                "WWW-Authenticate": 'Basic realm="gpumon"' if self.config.basic_auth_users else 'Bearer realm="gpumon"'
            },
        )


def _load(path: Path) -> tuple[WebConfig, ssl.SSLContext | None]:
    config = read(path)
    return config, tls_context(path, config)


class TooManyPasswordsError(Exception):
    """Raised if too many passwords, of all clients or of this one, wait to be verified."""


class Passwords:
    """Verifies passwords against bcrypt hashes, and caches each user's last right password until the hash changes."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="passwords")
        self._waiting: list[str] = []  # addresses of clients
        self._right: dict[str, tuple[str, bytes]] = {}
        """For each user, the bcrypt hash and the SHA-256 of the password that last matched it."""

    async def verify(self, user: str, password: str, users: Mapping[str, str], client: str) -> bool:
        """Return True if the user exists and the password is right; raise TooManyPasswordsError if too many wait.

        `users`: bcrypt hashes by user name. `client`: address of the client.
        """
        digest, hashed = hashlib.sha256(password.encode()).digest(), users.get(user)
        last_match = self._right.get(user)
        if last_match is not None and last_match[0] == hashed and hmac.compare_digest(last_match[1], digest):
            return True
        if len(self._waiting) >= MAX_WAITING or self._waiting.count(client) >= MAX_WAITING_OF_CLIENT:
            raise TooManyPasswordsError
        self._waiting.append(client)
        # For a user who does not exist, check another hash: the response time must not reveal which users exist.
        decoy = max(users.values(), key=lambda each: each[4:6], default="")  # the cost, as in $2b$10$
        try:
            loop = asyncio.get_running_loop()
            right = await loop.run_in_executor(self._thread, _matches, password, hashed or decoy)
        finally:
            self._waiting.remove(client)
        if right and hashed is not None:
            self._right[user] = (hashed, digest)
        return right and hashed is not None


def _matches(password: str, hashed: str) -> bool:
    import bcrypt  # noqa: PLC0415 - only agents with users need it

    try:
        return bool(bcrypt.checkpw(password.encode()[:72], hashed.encode()))  # bcrypt uses only the first 72 bytes
    except ValueError:  # a hash that is damaged
        return False


def basic_credentials(authorization: str) -> tuple[str, str] | None:
    """Return the user and the password in an Authorization header; None if it is not a valid header of scheme Basic."""
    scheme, _, encoded = authorization.partition(" ")
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except ValueError:  # no base64, or no UTF-8
        return None
    return (user, password) if scheme.lower() == "basic" and colon else None


def is_token(authorization: str, token: str | None) -> bool:
    """Return True if an Authorization header has this bearer token. The comparison takes constant time."""
    scheme, _, given = authorization.partition(" ")
    return (
        token is not None and scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())
    )
