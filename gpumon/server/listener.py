"""HTTP endpoint of the daemon: its listening sockets, its server and its token files."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

from starlette.types import ASGIApp

from gpumon import systemd
from gpumon.config.model import WebSection
from gpumon.server.access import Access
from gpumon.server.connections import Refusals
from gpumon.server.token import TokenError, ensure, read, warning
from gpumon.server.uvicorn_thread import ListenError, Server, listen, listen_locally

_log = logging.getLogger("gpumon")


class HttpEndpoint:
    """The TCP socket, the unix socket and the HTTP server. Requests are answered after `start`."""

    def __init__(self, web: WebSection, local_path: Path, create_app: Callable[[], ASGIApp]) -> None:
        """Open the TCP socket and read the web configuration. Raise ListenError or WebConfigError if that fails.

        `local_path` is the path of the unix socket. `start` calls `create_app`.
        """
        self._web = web
        self._local_path = local_path
        self._create_app = create_app
        self._socket = _inherited_socket(web) or listen(*web.address)
        self.host, port = self._socket.getsockname()[:2]
        self.refusals = Refusals()
        self.token = partial(_token, web.token_file)
        """Returns the current content of the token file; None if it cannot be read."""
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

    def _create_token(self, subject: str, path: Path, effect: str) -> None:
        try:
            ensure(path)
            notice = warning(path)
        except TokenError as error:
            notice = f"{effect}: {error}"
        if notice is not None:
            self._note(subject, notice)

    def _listen_locally(self) -> list[socket.socket]:
        try:
            return [listen_locally(self._local_path)]
        except ListenError as error:
            self._note("socket", f"commands on this host cannot reach the agent: {error}")
            return []

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
