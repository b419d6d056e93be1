"""One answer over HTTP, whole within a deadline, however slowly its bytes come, and no longer than a limit."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from typing import Any

from gpumon import __version__

LONGEST_SILENCE = 10.0
"""Seconds between two bytes."""


def fetch(url: str, data: bytes, *, seconds: float, limit: int) -> bytes:
    """What is answered to this form, whatever its status if it is JSON. Raises OSError, ValueError, HTTPException."""
    request = urllib.request.Request(  # noqa: S310 - the configuration takes http and https alone
        url, data=data, headers={"User-Agent": f"gpumon/{__version__}"}
    )
    opened = _Opened()
    timer = threading.Timer(seconds, opened.end)
    timer.daemon = True
    timer.start()
    try:
        body = _exchange(urllib.request.build_opener(opened), request, limit + 1)
    except Exception as error:
        if opened.late:
            raise TimeoutError(f"no whole answer within {seconds:g} s") from error
        raise
    finally:
        timer.cancel()
    if opened.late:
        raise TimeoutError(f"no whole answer within {seconds:g} s")
    if len(body) > limit:
        raise ValueError(f"the answer is longer than {limit} bytes")
    return body


def _exchange(opener: urllib.request.OpenerDirector, request: urllib.request.Request, most: int) -> bytes:
    try:
        with opener.open(request, timeout=LONGEST_SILENCE) as answer:
            return bytes(answer.read(most))
    except urllib.error.HTTPError as error:
        with error:
            if error.headers.get_content_type() != "application/json":
                raise
            return bytes(error.read(most))


class _Noted(http.client.HTTPConnection):
    """Tells of its socket."""

    def __init__(self, host: str, *, opened: Callable[[socket.socket], None], **options: Any) -> None:
        super().__init__(host, **options)
        self._opened = opened

    def connect(self) -> None:
        super().connect()
        self._opened(self.sock)


class _NotedTls(_Noted, http.client.HTTPSConnection):
    """The same over TLS, whose handshake has a deadline of its own."""


class _Opened(urllib.request.HTTPSHandler, urllib.request.HTTPHandler):
    """Connections that another thread can end, at whatever they wait for."""

    def __init__(self) -> None:
        super().__init__()
        self._sockets: list[socket.socket] = []
        self.late = False
        """They were ended."""

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(_Noted, opened=self._note), req)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(_NotedTls, opened=self._note), req)

    def _note(self, one: socket.socket) -> None:
        self._sockets.append(one)
        if self.late:
            self.end()

    def end(self) -> None:
        self.late = True
        for one in self._sockets:
            with contextlib.suppress(OSError):  # it has ended
                one.shutdown(socket.SHUT_RDWR)
