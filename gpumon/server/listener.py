"""HTTP endpoint of the daemon: its listening sockets, its server and its token."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from pathlib import Path

from starlette.types import ASGIApp

from gpumon import systemd
from gpumon.config.model import WebSection
from gpumon.server.connections import Refusals
from gpumon.server.token import TokenError, ensure, read, warning
from gpumon.server.uvicorn_thread import ListenError, Server, listen, listen_locally

_log = logging.getLogger("gpumon")


class HttpEndpoint:
    """The TCP socket, the unix socket and the HTTP server. Requests are answered after `start`."""

    def __init__(self, web: WebSection, local_path: Path, create_app: Callable[[], ASGIApp]) -> None:
        """Listen on the configured TCP address. Raise ListenError if that fails.

        `local_path` is the path of the unix socket.
        """
        self._web = web
        self._local_path = local_path
        self._create_app = create_app
        self._socket = _inherited(web.address) or listen(*web.address)
        self.host, port = self._socket.getsockname()[:2]
        self._url = f"http://[{self.host}]:{port}/" if ":" in self.host else f"http://{self.host}:{port}/"
        self._server: Server | None = None
        self.refusals = Refusals()
        self.notices: dict[str, str] = {}
        """Problems with the token file ("token") and the unix socket ("socket") for the operator."""

    def start(self) -> None:
        """Create the application and start the server. Return when requests are accepted."""
        self._create_token()
        self._server = Server(self._create_app(), self.refusals)
        self._server.start([self._socket, *self._listen_locally()])
        _log.info("listening", extra={"url": self._url, "socket": str(self._local_path)})

    def stop(self) -> None:
        """Finish the requests in progress, stop the server and close its sockets."""
        if self._server is None:
            self._socket.close()
        else:
            self._server.stop()
            if "socket" not in self.notices:
                self._local_path.unlink(missing_ok=True)

    def token(self) -> str | None:
        """Return the current content of the token file; None if it cannot be read."""
        try:
            return read(self._web.token_file)
        except TokenError:
            return None

    def _create_token(self) -> None:
        try:
            ensure(self._web.token_file)
            notice = warning(self._web.token_file)
        except TokenError as error:
            notice = f"writes over TCP are refused: {error}"
        if notice is not None:
            self._note("token", notice)

    def _listen_locally(self) -> list[socket.socket]:
        try:
            return [listen_locally(self._local_path)]
        except ListenError as error:
            self._note("socket", f"commands on this host cannot reach the agent: {error}")
            return []

    def _note(self, subject: str, notice: str) -> None:
        _log.error(notice)
        self.notices[subject] = notice


def _inherited(address: tuple[str, int]) -> socket.socket | None:
    """Return the TCP socket of the systemd socket unit, which keeps it open over restarts; None without such a unit."""
    given = next((given for given in systemd.listening_sockets() if given.family != socket.AF_UNIX), None)
    if given is not None and given.getsockname()[:2] != address:
        hint = "gpumon.socket decides: change its ListenStream= (systemctl edit gpumon.socket)"
        _log.warning("web.listen_address is not used", extra={"address": given.getsockname()[:2], "hint": hint})
    return given
