"""uvicorn in a thread of its own. The main thread has the signals, the loop and the children."""

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
"""Seconds for a client to send a whole request, so that an idle client does not occupy a connection."""
KEEP_ALIVE = 75
"""Seconds: longer than the usual scrape interval of a minute, so that scrapes share a connection."""
MAX_CONNECTIONS = 256
"""Further connections are closed at once, so that idle clients do not use up the file descriptors."""
SHUTDOWN_SECONDS = 2
"""For requests in progress when the server stops."""

LOG_INTERVAL_SECONDS = 60.0
"""Min interval of log lines about connections that cannot be accepted: asyncio reports a hundred a second."""

_log = logging.getLogger("gpumon.server")

_REMEDIES: Mapping[int | None, str] = {
    errno.EADDRINUSE: "Another process listens there: `ss -ltnp` shows which. Stop it, or give another "
    "--web.listen-address.",
    errno.EADDRNOTAVAIL: "Give an address of this host (`ip address`) as --web.listen-address.",
    errno.EACCES: "Ports under 1024 need CAP_NET_BIND_SERVICE: give another --web.listen-address.",
}
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class ListenError(Exception):
    """Listening failed; the message has the address and the remedy."""


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. An empty host means every address, IPv6 too; port 0 means any free port."""
    every = not host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if every or ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=every)
    except OSError as error:
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        reason = error.strerror.partition(" (while")[0] if error.strerror else str(error)
        remedy = _REMEDIES.get(error.errno, "Give an IP address of this host as --web.listen-address.")
        raise ListenError(f"cannot listen on {where}: {reason}. {remedy}") from error
    # asyncio sets this only for sockets created with the protocol number. Without it a response waits 40 ms for an ACK.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


class Server:
    """An HTTP server for sockets that are already listening."""

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
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )
        self._uvicorn = _Uvicorn(config)
        self._thread: threading.Thread | None = None

    def start(self, sockets: Sequence[socket.socket]) -> None:
        """Start serving; return when requests are accepted. The server closes the sockets."""
        self._thread = threading.Thread(target=self._serve, args=(list(sockets),), name="serve", daemon=True)
        self._thread.start()
        self._uvicorn.settled.wait()
        if not self._uvicorn.started:
            raise RuntimeError("the HTTP server did not start; its thread has logged why")

    def stop(self) -> None:
        """Finish the requests in progress and stop."""
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
    """A uvicorn server that signals when it serves, and waits for the stop event instead of polling it."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.settled = threading.Event()
        """Set when it serves or has failed to start."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._logged_at: float | None = None

    def ask_to_stop(self) -> None:
        """Stop the server; may be called from any thread."""
        self.should_exit = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is already closed
                self._loop.call_soon_threadsafe(self._stopping.set)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._on_error)
        await super().startup(sockets)
        self.settled.set()

    def _on_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log an error of asyncio; limit the rate of errors about file descriptors."""
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in _OUT_OF_RESOURCES:
            loop.default_exception_handler(context)
        elif self._logged_at is None or loop.time() - self._logged_at >= LOG_INTERVAL_SECONDS:
            self._logged_at = loop.time()
            hint = "see /proc/<pid>/fd of the agent for its open files; LimitNOFILE= of its unit sets the limit"
            _log.error("connections cannot be accepted now", extra={"error": str(error), "hint": hint})

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # sets the Date header
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), 1)


class _Protocol(H11Protocol):
    """HTTP/1.1 with a deadline for each request; uvicorn's own timeouts begin after the first response."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
        else:
            self._start_deadline()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self._start_deadline()
        else:
            self._cancel_deadline()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.trailing_data[0]:  # the next request has already begun
            self._start_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        super().connection_lost(exc)

    def _start_deadline(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_DEADLINE, self.transport.close)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
