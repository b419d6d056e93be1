"""Credentials of clients over TCP: bearer tokens, and users with passwords, which are verified in a thread."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

MAX_WAITING = 16
"""Maximum number of passwords that wait to be verified. Each verification takes tens of milliseconds of one core."""
MAX_WAITING_OF_CLIENT = 2
"""Maximum number that wait for one client address, so that a flood of wrong passwords does not lock out others."""


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
        """Return True if the user exists and the password is right.

        Raise TooManyPasswordsError if too many passwords, or too many of this client, already wait.
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
        decoy = max(users.values(), key=_cost, default="")
        try:
            loop = asyncio.get_running_loop()
            right = await loop.run_in_executor(self._thread, _matches, password, hashed or decoy)
        finally:
            self._waiting.remove(client)
        if right and hashed is not None:
            self._right[user] = (hashed, digest)
        return right and hashed is not None


def _cost(hashed: str) -> str:
    return hashed[4:6]  # as in $2b$10$


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
