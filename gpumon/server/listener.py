"""The HTTP endpoint of the daemon: its listening socket, its server and its token."""

from __future__ import annotations

import logging
from collections.abc import Callable

from starlette.types import ASGIApp

from gpumon.config.default_paths import LOOPBACK
from gpumon.config.model import WebSection
from gpumon.server.token import TokenError, ensure, read, warning
from gpumon.server.uvicorn_thread import Server, listen

_log = logging.getLogger("gpumon")


class HttpEndpoint:
    """A socket that listens from the beginning, and a server that answers after `start`."""

    def __init__(self, web: WebSection, create_app: Callable[[], ASGIApp]) -> None:
        """Listen on the configured address. Raise ListenError if that fails."""
        self._web = web
        self._create_app = create_app
        self._socket = listen(*web.address)
        host, port = self._socket.getsockname()[:2]
        self._url = f"http://{_address(host, port)}/"
        self.local_address = _address(LOOPBACK.get(web.address[0], host), port)
        """Host and port at which a program on this host reaches the daemon."""
        self._server: Server | None = None
        self.notice: str | None = None
        """Problem with the token file."""

    def start(self) -> None:
        """Create the application and serve it; return when requests are accepted."""
        self._create_token()
        self._server = Server(self._create_app())
        self._server.start([self._socket])
        _log.info("listening", extra={"url": self._url})

    def stop(self) -> None:
        """Finish the requests in progress and stop."""
        if self._server is None:
            self._socket.close()
        else:
            self._server.stop()

    def token(self) -> str | None:
        """Return the current token of the file, or None if it cannot be read."""
        try:
            return read(self._web.token_file)
        except TokenError:
            return None

    def _create_token(self) -> None:
        try:
            ensure(self._web.token_file)
            self.notice = warning(self._web.token_file)
        except TokenError as error:
            self.notice = f"writes are refused: {error}"
        if self.notice is not None:
            _log.error(self.notice)


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
