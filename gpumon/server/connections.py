"""HTTP connections: their time limits, their maximum number, and the user at the other end of a unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.server import ServerState

REQUEST_DEADLINE = 10.0
"""Maximum seconds for a client to send a whole request, so that a slow client does not occupy a connection."""
WRITE_DEADLINE = 30.0
"""Maximum seconds for which a client that does not read may block the response; then the connection is reset."""
MAX_CONNECTIONS = 256
"""Maximum number of TCP connections. A new one replaces the one that is idle longest; if none is, it is closed."""
MAX_LOCAL_CONNECTIONS = 64
"""Maximum number of unix-socket connections of users who may change state; as many are allowed for all other users."""
KEPT_FOR_METRICS = 32
"""Number of TCP connections that are reserved for requests to /metrics and to the liveness and readiness routes."""
KEPT_PATHS = ("/metrics", "/-/")
LOG_INTERVAL_SECONDS = 60.0
"""Minimum seconds between two log lines about refusals for the same reason."""
REASONS = ("connections", "credentials", "descriptors", "token", "user")
_PEER = struct.Struct("3i")
_SO_PEERGROUPS = 59
_MAX_BYTES = 1024
"""Maximum size in bytes of the list of a user's groups, because getsockopt returns no more: 256 group ids."""

_DISCARD = struct.pack("ii", 1, 0)
_NO_LOGIN = 0xFFFFFFFF
_log = logging.getLogger("gpumon.server")


class Peer(NamedTuple):
    """The process that connected to the unix socket, as the kernel identifies it at connect time."""

    uid: int
    groups: frozenset[int]
    login_uid: int | None
    """Id of the user who logged in to the process's session, unchanged by sudo; None for a service."""

    @property
    def may_write(self) -> bool:
        """Return True if the process may change state: it runs as root or the agent's user, or in the agent's group."""
        return self.uid in {0, os.geteuid()} or os.getegid() in self.groups


class Refusals:
    """Counts refused connections and requests by reason, and logs each reason at most once a minute."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(REASONS, 0.0)
        self._logged_at: dict[str, float] = {}

    def add(self, reason: str, detail: str) -> None:
        self.counts[reason] += 1
        if time.monotonic() >= self._logged_at.get(reason, -LOG_INTERVAL_SECONDS) + LOG_INTERVAL_SECONDS:
            self._logged_at[reason] = time.monotonic()
            _log.warning(detail, extra={"reason": reason, "refused_total": f"{self.counts[reason]:.0f}"})


def peer_of(connection: socket.socket) -> Peer | None:
    """Return the process at the other end of a unix socket; None for a TCP connection."""
    if connection.family != socket.AF_UNIX:
        return None
    pid, uid, gid = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    groups = b""
    with contextlib.suppress(OSError):  # fails for a user with more than 256 groups: only the primary group is used
        groups = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MAX_BYTES)
    login_uid = _NO_LOGIN
    with contextlib.suppress(OSError, ValueError):
        login_uid = int(Path(f"/proc/{pid}/loginuid").read_text(encoding="ascii"))
    all_groups = frozenset({gid, *struct.unpack(f"{len(groups) // 4}I", groups)})
    return Peer(uid, all_groups, None if login_uid == _NO_LOGIN else login_uid)


class _Transport:
    """The transport that the HTTP protocol of a connection gets, which reports that it is closed."""

    def __init__(self, transport: asyncio.Transport, on_close: Callable[[], None]) -> None:
        self._transport = transport
        self._on_close = on_close

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        self._transport.close()
        self._on_close()


class Connection(asyncio.Protocol):
    """An HTTP/1.1 connection that limits the time for receiving a request and for sending a response.

    It passes bytes and callbacks between its transport and uvicorn's HTTP protocol, which itself limits only the time
    between requests (keep-alive), and `handle` passes requests between that protocol and the application.
    """

    def __init__(
        self, config: uvicorn.Config, state: ServerState, refusals: Refusals, connections: set[Connection]
    ) -> None:
        self.peer: Peer | None = None
        self.used_at = 0.0
        self.transport: asyncio.Transport
        self._is_busy = False
        self._is_paused = False
        self._refusals = refusals
        self._connections = connections
        http: Any = config.http_protocol_class
        self._http: asyncio.Protocol = http(config=config, server_state=state, app_state={"connection": self})
        self._deadlines: dict[str, asyncio.TimerHandle] = {}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._loop = asyncio.get_running_loop()
        self.transport = transport
        self._connections.add(self)
        self._http.connection_made(_Transport(transport, self._limit_close))  # type: ignore[arg-type]
        self.peer = peer_of(transport.get_extra_info("socket"))
        self.used_at = self._loop.time()
        if len(self._connections_of_kind()) > (MAX_CONNECTIONS if self.peer is None else MAX_LOCAL_CONNECTIONS):
            self._make_room()
        self._start_deadline("request", REQUEST_DEADLINE)

    @property
    def is_idle(self) -> bool:
        """Return True if the connection waits for its client to send a request or to read the response."""
        return self._is_paused or not self._is_busy

    def is_crowded(self) -> bool:
        """Return True for a TCP connection if more than MAX_CONNECTIONS - KEPT_FOR_METRICS of these are busy."""
        busy = sum(not other.is_idle for other in self._connections_of_kind())
        return self.peer is None and busy > MAX_CONNECTIONS - KEPT_FOR_METRICS

    async def handle(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Let `app` respond to a request of which the client has sent all. The body is left out: no route reads one."""
        while (message := await receive()).get("more_body"):
            pass
        if message["type"] == "http.disconnect":
            return
        self._end_deadline("request")
        self._is_busy = True
        unread: list[Message] = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive_rest() -> Message:
            return unread.pop() if unread else await receive()

        async def send_on(message: Message) -> None:
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                self._is_busy = False

        await app(scope, receive_rest, send_on)

    def data_received(self, data: bytes) -> None:
        self.used_at = self._loop.time()
        if not self._is_busy:
            self._start_deadline("request", REQUEST_DEADLINE)
        self._http.data_received(data)

    def eof_received(self) -> bool | None:
        return self._http.eof_received()

    def pause_writing(self) -> None:
        self._is_paused = True
        self._http.pause_writing()
        self._start_deadline("write", WRITE_DEADLINE)

    def resume_writing(self) -> None:
        self._is_paused = False
        self._end_deadline("write")
        self._limit_close()
        self._http.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._http.connection_lost(exc)  # closes the transport again, which starts a deadline
        for name in tuple(self._deadlines):
            self._end_deadline(name)

    def _connections_of_kind(self) -> list[Connection]:
        """Return the open connections of the same `kind`, including this one, without those that are closing."""
        return [each for each in self._connections if each.kind == self.kind and not each.transport.is_closing()]

    @property
    def kind(self) -> bool | None:
        """Return None for a TCP connection; for a unix socket, True if its user may change state and False if not."""
        return None if self.peer is None else self.peer.may_write

    def _make_room(self) -> None:
        """Close the connection that was idle longest, of the user with the most connections, or else this new one."""
        alike = self._connections_of_kind()
        by_user = Counter(other.peer and other.peer.uid for other in alike)
        largest = max(by_user.values())
        users = {user for user, count in by_user.items() if count == largest}
        idle = [
            other for other in alike if other is not self and other.is_idle and (other.peer and other.peer.uid) in users
        ]
        min(idle, key=lambda other: other.used_at, default=self).reset()
        self._refusals.add("connections", "too many connections; the one that was idle longest is closed for a new one")

    def _limit_close(self) -> None:
        """Start the write deadline if the connection is closing, because asyncio would wait for the client for ever."""
        if self.transport.is_closing():
            self._start_deadline("write", WRITE_DEADLINE)

    def _start_deadline(self, name: str, seconds: float) -> None:
        if name not in self._deadlines:
            self._deadlines[name] = self._loop.call_later(
                seconds, self.reset if name == "write" else self.transport.abort
            )

    def reset(self) -> None:
        """Close the connection and discard unsent data, which the kernel would otherwise keep for minutes."""
        if (connection := self.transport.get_extra_info("socket")) is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DISCARD)
        self.transport.abort()

    def _end_deadline(self, name: str) -> None:
        if name in self._deadlines:
            self._deadlines.pop(name).cancel()
