"""Where clients find the daemon: the address, the token that guards it, and word of both for `gpumon check`."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from starlette.types import ASGIApp

from gpumon import __version__
from gpumon.config import agent_file, places
from gpumon.config.agent_file import ANYWHERE, Beacon
from gpumon.config.model import Web
from gpumon.server.server import Server, listen
from gpumon.server.token import TokenError, ensure, read, warning

_log = logging.getLogger("gpumon")


class Front:
    """Listens from the beginning, and answers once it is started."""

    def __init__(self, web: Web, store: Path, create_app: Callable[[], ASGIApp]) -> None:
        """Listen on the configured address. Raises ListenError."""
        self._web = web
        self._store = store
        self._create_app = create_app
        self._socket = listen(*web.address)
        self._server: Server | None = None
        self.notice: str | None = None
        """What is wrong with the token."""

    def start(self) -> None:
        """Create the application and serve it. Returns once requests are taken."""
        self._make_token()
        host, port = self._socket.getsockname()[:2]
        self._server = Server(self._create_app())
        self._server.start([self._socket])
        self._leave_word(host, port)
        _log.info("listening", extra={"url": f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"})

    def stop(self) -> None:
        """Take no more requests, finish those in progress."""
        if self._server is None:
            self._socket.close()
        else:
            self._server.stop()

    def token(self) -> str | None:
        """As its file holds it now; None where there is none."""
        try:
            return read(self._web.token_file)
        except TokenError:
            return None

    def _make_token(self) -> None:
        try:
            ensure(self._web.token_file)
            self.notice = warning(self._web.token_file)
        except TokenError as error:
            self.notice = f"writes are refused: {error}"
        if self.notice is not None:
            _log.error(self.notice)

    def _leave_word(self, host: str, port: int) -> None:
        """For `gpumon check`, which without it has to read the configuration."""
        runtime = places.given_runtime_directory(os.environ)
        asked = ANYWHERE.get(self._web.address[0], host)
        own = Beacon(host=asked, port=port, store=str(self._store.absolute()), pid=os.getpid(), version=__version__)
        for path in (agent_file.beside(str(self._store)), *([f"{runtime}/{agent_file.NAME}"] if runtime else [])):
            try:
                agent_file.write(own, path)
            except OSError as error:
                _log.warning("cannot leave word for gpumon check, which may be slow now", extra={"error": str(error)})
