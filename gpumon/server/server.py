"""uvicorn in a thread of its own. The main thread keeps the signals, the loop and the children."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

BACKLOG = 128
REQUEST_DEADLINE = 10.0
"""Seconds for a client to send a whole request: one that never does must not hold a place for ever."""
KEEP_ALIVE = 75
"""Seconds: longer than the usual minute between two scrapes, so that they share a connection."""
MOST_CONNECTIONS = 256
"""One more is closed at once: those who ask for nothing must not take the descriptors of those who do."""
PATIENCE = 2
"""Seconds for requests in progress when the server is stopped."""

SAY_AGAIN = 60.0
"""Seconds until it is said again that no connection can be accepted: asyncio says so a hundred times a second."""

_log = logging.getLogger("gpumon.server")

_REMEDIES: Mapping[int | None, str] = {
    errno.EADDRINUSE: "Something listens there, perhaps another gpumon: `ss -ltnp` names it. Stop it, or give another "
    "--web.listen-address.",
    errno.EADDRNOTAVAIL: "`ip address` shows the addresses of this host: give one of them as --web.listen-address.",
    errno.EACCES: "Ports under 1024 need CAP_NET_BIND_SERVICE: give another --web.listen-address.",
}
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class ListenError(Exception):
    """The address cannot be listened on; the message names it and the remedy."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. An empty host is every address, of IPv6 too; port 0 is a free one."""
    every = not host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if every or ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=every)
    except OSError as error:
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        reason = error.strerror.partition(" (while")[0] if error.strerror else str(error)
        remedy = _REMEDIES.get(error.errno, "Give an IP address of this host as --web.listen-address.")
        raise ListenError(f"cannot listen on {where}: {reason}. {remedy}") from error
    # asyncio does so only for sockets made with the protocol's number. Without it each answer waits 40 ms for an ACK.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


class Server:
    """Serves an application on sockets that are already listening."""

    def __init__(self, app: ASGIApp) -> None:
        config = uvicorn.Config(
            app,
            http=_Protocol,
            loop="asyncio",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=PATIENCE,
        )
        self._uvicorn = _Uvicorn(config)
        self._thread: threading.Thread | None = None

    def start(self, sockets: Sequence[socket.socket]) -> None:
        """Returns once requests are taken. The sockets are then the server's, to close."""
        self._thread = threading.Thread(target=self._serve, args=(list(sockets),), name="serve", daemon=True)
        self._thread.start()
        self._uvicorn.settled.wait()
        if not self._uvicorn.started:
            raise RuntimeError("the HTTP server did not start; its thread has logged why")

    def stop(self) -> None:
        """Take no more requests, finish those in progress."""
        if self._thread is not None:
            self._uvicorn.ask_to_stop()
            self._thread.join()
            self._thread = None

    def _serve(self, sockets: list[socket.socket]) -> None:
        try:
            self._uvicorn.run(sockets)
        finally:
            self._uvicorn.settled.set()


class _Uvicorn(uvicorn.Server):
    """Tells when it serves, and sleeps until it is told to stop, where uvicorn looks ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.settled = threading.Event()
        """It serves, or has failed to."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._said_at: float | None = None

    def ask_to_stop(self) -> None:
        """From any thread."""
        self.should_exit = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended already
                self._loop.call_soon_threadsafe(self._stopping.set)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._failed)
        await super().startup(sockets)
        self.settled.set()

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Of what asyncio tells, the lack of descriptors comes without end."""
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in _OUT_OF_RESOURCES:
            loop.default_exception_handler(context)
        elif self._said_at is None or loop.time() - self._said_at >= SAY_AGAIN:
            self._said_at = loop.time()
            hint = "see /proc/<pid>/fd of the agent for what is open; LimitNOFILE= of its unit sets the limit"
            _log.error("connections cannot be accepted now", extra={"error": str(error), "hint": hint})

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # sets the Date header
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), 1)


class _Protocol(H11Protocol):
    """With a deadline for the request; uvicorn's own timeouts begin after the first answer."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()
        else:
            self._expect()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self._expect()
        else:
            self._expect_nothing()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.trailing_data[0]:  # the beginning of a request came with the one before it
            self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        super().connection_lost(exc)

    def _expect(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_DEADLINE, self.transport.close)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
