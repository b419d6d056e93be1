"""HTTP endpoint of the daemon: its listening sockets, its token files, and uvicorn, which runs in its own thread."""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import contextlib
import errno
import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from gpumon import systemd
from gpumon.config.model import WebSection
from gpumon.server.access import Access
from gpumon.server.connections import REQUEST_DEADLINE, Connection, Refusals
from gpumon.server.token import TokenError, ensure, read, warning

_log = logging.getLogger("gpumon")

BACKLOG = 128
SEND_BUFFER = 1 << 17
"""Value of SO_SNDBUF for TCP connections in bytes. The page /metrics has about 200 kB, or 20 kB compressed."""
KEEP_ALIVE = 75
"""Seconds for which an idle connection is kept open: scrapes, usually one a minute, share a connection."""
MAX_HANDSHAKES = 128
"""Maximum number of TLS handshakes in progress. A connection counts for MAX_CONNECTIONS only after its handshake."""
SHUTDOWN_SECONDS = 2
"""Maximum seconds for requests in progress when the server stops."""

# uvicorn logs each malformed request: one client caused 3,000 lines in 5 s, and journald then drops other lines.
logging.getLogger("uvicorn.error").addFilter(lambda record: record.levelno >= logging.ERROR)

# asyncio allocates a buffer of this size for each TLS connection: 256 KiB by default, and a TLS record has 16 KiB.
asyncio.sslproto.SSLProtocol.max_size = 1 << 14  # type: ignore[attr-defined, unused-ignore]  # not in Python 3.10

_REMEDIES: Mapping[int | None, str] = {
    errno.EADDRINUSE: "Another process listens there: `ss -ltnp` shows which. Stop it, or give another "
    "--web.listen-address.",
    errno.EADDRNOTAVAIL: "Give an address of this host (`ip address`) as --web.listen-address.",
    errno.EACCES: "Ports under 1024 need CAP_NET_BIND_SERVICE: give another --web.listen-address.",
}
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class ListenError(Exception):
    """Raised if the server cannot listen. The message contains the address and the remedy."""


def listen(host: str, port: int) -> socket.socket:
    """Return a listening TCP socket. Raise ListenError if that fails. An empty host means all addresses."""
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
    # Otherwise the kernel buffers up to 4 MB for each client that does not read.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
    return listener


def listen_locally(path: Path) -> socket.socket:
    """Return a listening unix socket to which every local user can connect. Raise ListenError if that fails."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            owner = os.fstat(folder).st_uid
            if owner not in {0, os.geteuid()}:
                raise OSError(errno.EPERM, f"its folder belongs to uid {owner}, who could replace the socket")
            _bind(listener, Path(f"/proc/self/fd/{folder}/{path.name}"))  # a socket path has at most 107 bytes
        finally:
            os.close(folder)
    except OSError as error:
        listener.close()
        reason = "another agent listens there" if error.errno == errno.EADDRINUSE else error.strerror
        raise ListenError(f"cannot listen on {path}: {reason}. Give another path as --web.socket.") from error
    return listener


def _bind(listener: socket.socket, path: Path) -> None:
    """Bind the socket to the path, and replace the socket file of a killed agent. Raise OSError if an agent listens."""
    with contextlib.suppress(FileNotFoundError, ConnectionRefusedError), socket.socket(socket.AF_UNIX) as other:
        other.connect(str(path))
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    if path.is_socket():
        path.unlink()
    elif os.path.lexists(path):
        raise OSError(errno.EEXIST, "a file that is no socket has this name; remove it")
    before = os.umask(0o111)  # every user may connect; the server checks the user. chmod would follow a link
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    listener.listen(BACKLOG)


class _TlsListener(socket.socket):
    """A copy of a listening socket that ends the oldest TLS handshake if more than MAX_HANDSHAKES are in progress.

    A client needs no certificate and no password to begin a handshake, which takes memory and a file descriptor.
    """

    def __init__(self, listener: socket.socket, refusals: Refusals, connected: Callable[[], set[int]]) -> None:
        """Copy the socket. `connected` returns the file descriptors of the connections without a handshake."""
        super().__init__(listener.family, listener.type, listener.proto, fileno=listener.dup().detach())
        self._refusals = refusals
        self._connected = connected
        self._accepted: list[socket.socket] = []

    def accept(self) -> tuple[socket.socket, Any]:
        connection, address = super().accept()
        self._accepted = [*(each for each in self._accepted if each.fileno() >= 0), connection]
        if len(self._accepted) > MAX_HANDSHAKES:
            connected = self._connected()
            self._accepted = [each for each in self._accepted if each.fileno() not in connected]
        if len(self._accepted) > MAX_HANDSHAKES:
            with contextlib.suppress(OSError):
                self._accepted.pop(0).shutdown(socket.SHUT_RDWR)
            self._refusals.add("connections", "too many TLS handshakes; the oldest is ended for a new one")
        return connection, address


class Server(uvicorn.Server):
    """An HTTP server in its own thread, for sockets that are already listening. It uses the current TLS context."""

    def __init__(self, app: ASGIApp, refusals: Refusals, access: Access) -> None:
        self._connections: set[Connection] = set()
        """All open connections. One with TLS is added after its handshake."""

        async def handle(scope: Scope, receive: Receive, send: Send) -> None:
            await scope["state"]["connection"].handle(app, scope, receive, send)

        config = uvicorn.Config(
            handle,
            http="h11",
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
        super().__init__(config)
        self._refusals = refusals
        self._access = access
        self._listeners: Sequence[socket.socket] = ()
        self._accepting = contextlib.ExitStack()
        """The servers that accept connections. Its `close` closes them and their sockets."""
        self._thread: threading.Thread | None = None
        self._start_finished = threading.Event()
        """Set when the server accepts requests, or has failed to start."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()

    def start(self, sockets: Sequence[socket.socket]) -> None:
        """Start the server, and return when requests are accepted. Raise RuntimeError if the start fails."""
        self._thread = threading.Thread(target=self.run, args=(list(sockets),), name="serve", daemon=True)
        self._thread.start()
        self._start_finished.wait()
        if not self.started:
            raise RuntimeError("the HTTP server did not start; its thread has logged why")

    def stop(self) -> None:
        self.should_exit = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is already closed
                self._loop.call_soon_threadsafe(self._stopping.set)
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            super().run(sockets)
        finally:
            self._start_finished.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._on_error)
        self._listeners = sockets or ()
        await super().startup([])
        await self._listen()
        self._start_finished.set()

    async def _listen(self) -> None:
        """Use the current TLS context for new TCP connections from now on. The unix socket never uses TLS.

        Raise OSError if that fails, for example without a free file descriptor: the previous one then remains in use.
        """
        tls = self._access.tls
        connect = partial(Connection, self.config, self.server_state, self._refusals, self._connections)
        with contextlib.ExitStack() as opened:
            for listener in self._listeners:
                context = None if listener.family == socket.AF_UNIX else tls
                limit = None if context is None else REQUEST_DEADLINE
                sock = listener.dup() if context is None else _TlsListener(listener, self._refusals, self._connected)
                opened.callback(sock.close)
                server = await asyncio.get_running_loop().create_server(
                    connect, sock=sock, ssl=context, ssl_handshake_timeout=limit, backlog=BACKLOG
                )
                opened.callback(server.close)
            self._accepting, before = opened.pop_all(), self._accepting
        before.close()

    async def _renew(self, *, again: bool) -> bool:
        """Listen with the current TLS context. Return False, and log it unless `again`, if that fails."""
        try:
            await self._listen()
        except OSError as error:
            if not again:
                _log.error("new connections use the previous TLS settings; retrying", extra={"error": str(error)})
            return False
        if again:
            _log.info("new connections use the current TLS settings")
        return True

    def _connected(self) -> set[int]:
        """Return the file descriptors of the connections whose TLS handshake, if any, is over."""
        return {each.transport.get_extra_info("socket").fileno() for each in self._connections}

    def _on_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log an error from asyncio. If resources are exhausted, which causes many errors, only count a refusal."""
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in _OUT_OF_RESOURCES:
            loop.default_exception_handler(context)
        else:
            hint = "see /proc/<pid>/fd of the agent for its open files; LimitNOFILE= of its unit sets the limit"
            self._refusals.add("descriptors", f"connections cannot be accepted now: {error}; {hint}")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._accepting.close()
        await super().shutdown(sockets)

    async def main_loop(self) -> None:
        is_current = True
        while not await self.on_tick(0):  # sets the Date header
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), 1)
            if self._access.refresh() or not is_current:
                is_current = await self._renew(again=not is_current)


class HttpEndpoint:
    """The TCP socket, the unix socket and the HTTP server. Requests are answered after `start`."""

    def __init__(self, web: WebSection, local_path: Path, create_app: Callable[[], ASGIApp]) -> None:
        """Open the TCP socket and read the web configuration. Raise ListenError or WebConfigError if that fails."""
        self._web = web
        self._local_path = local_path
        self._create_app = create_app
        self._socket = _inherited_socket(web) or listen(*web.address)
        self.host, port = self._socket.getsockname()[:2]
        self.refusals = Refusals()
        self.token = partial(_token, web.token_file)
        read_token = None if web.read_token_file is None else partial(_token, web.read_token_file)
        self.access = Access(web.config_file, self.refusals, token=self.token, read_token=read_token)
        scheme = "http" if self.access.tls is None else "https"
        self._url = f"{scheme}://[{self.host}]:{port}/" if ":" in self.host else f"{scheme}://{self.host}:{port}/"
        self._server: Server | None = None
        self.notices: dict[str, str] = {}
        """Problems for the operator, by subject: "token" and "read_token" for the token files, or "socket"."""

    def start(self) -> None:
        """Create missing token files and the application, and start the server. Return when requests are accepted."""
        self._create_token("token", self._web.token_file, "writes over TCP are refused")
        if self._web.read_token_file is not None:
            self._create_token("read_token", self._web.read_token_file, "the token for reading is refused")
        self._server = Server(self._create_app(), self.refusals, self.access)
        sockets = [self._socket]
        try:
            sockets.append(listen_locally(self._local_path))
        except ListenError as error:
            self._note("socket", f"commands on this host cannot reach the agent: {error}")
        self._server.start(sockets)
        _log.info("listening", extra={"url": self._url, "socket": str(self._local_path)})

    def stop(self) -> None:
        if self._server is None:
            self._socket.close()
        else:
            self._server.stop()
            if "socket" not in self.notices:
                self._local_path.unlink(missing_ok=True)

    def _create_token(self, subject: str, path: Path, effect: str) -> None:
        try:
            ensure(path)
            notice = warning(path)
        except TokenError as error:
            notice = f"{effect}: {error}"
        if notice is not None:
            self._note(subject, notice)

    def _note(self, subject: str, notice: str) -> None:
        _log.error(notice)
        self.notices[subject] = notice


def _token(path: Path) -> str | None:
    try:
        return read(path)
    except TokenError:
        return None


def _inherited_socket(web: WebSection) -> socket.socket | None:
    """Return the TCP socket that a systemd socket unit passed to the agent; None if it passed none."""
    given = next((given for given in systemd.listening_sockets() if given.family != socket.AF_UNIX), None)
    configured = "listen_address" in web.model_fields_set
    if given is not None and configured and given.getsockname()[:2] != web.address:
        hint = "gpumon.socket decides: change its ListenStream= (systemctl edit gpumon.socket)"
        _log.warning("web.listen_address is not used", extra={"address": given.getsockname()[:2], "hint": hint})
    return given
