"""Makes unary gRPC calls over a unix socket. The package h2, which implements HTTP/2, is imported at the first call."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

MAX_READ_BYTES = 65_536
UNKNOWN_STATUS = 2
"""The gRPC status UNKNOWN, which is used if the server's answer contains no valid status."""


class GrpcError(Exception):
    """Raised if a call fails. `status` is the gRPC status, such as 14 (UNAVAILABLE); the text states the cause."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"gRPC status {status}: {message}")
        self.status = status


def unary_call(path: Path, method: str, message: bytes, seconds: float) -> None:
    """Call `method`, such as /package.Service/Method, with an encoded message of at most 16,000 bytes.

    Raise GrpcError if the status is not 0, OSError if the socket fails or does not answer for `seconds`, and
    ImportError without h2.
    """
    from h2.connection import H2Connection  # noqa: PLC0415 - an optional dependency, which takes 5 MB of memory
    from h2.exceptions import H2Error  # noqa: PLC0415

    client = H2Connection()
    try:
        client.initiate_connection()
        client.send_headers(1, _headers(method, seconds))
        client.send_data(1, struct.pack(">BI", 0, len(message)) + message, end_stream=True)
        answer = {name.decode(errors="replace"): value.decode(errors="replace") for name, value in _answer(client, path, seconds)}
    except H2Error as error:
        raise GrpcError(UNKNOWN_STATUS, f"the server does not speak HTTP/2: {error!r}") from error
    code = answer.get("grpc-status", "")
    if code != "0":
        message_text = unquote(answer.get("grpc-message", f"HTTP status {answer.get(':status')}"))
        raise GrpcError(int(code) if code.isdecimal() else UNKNOWN_STATUS, message_text)


def _headers(method: str, seconds: float) -> list[tuple[str, str]]:
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", method),
        (":authority", "localhost"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("grpc-timeout", f"{seconds * 1000:.0f}m"),
    ]


def _answer(client: Any, path: Path, seconds: float) -> Iterator[tuple[bytes, bytes]]:
    """Send what `client` has queued, and yield the headers and trailers of the answer."""
    from h2 import events as kinds  # noqa: PLC0415 - see unary_call

    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(seconds)
        connection.connect(str(path))
        ended = False
        while not ended:
            connection.sendall(client.data_to_send())
            data = connection.recv(MAX_READ_BYTES)
            if not data:
                raise ConnectionError("the server closed the connection without an answer")
            for event in client.receive_data(data):
                if isinstance(event, (kinds.StreamReset, kinds.ConnectionTerminated)):
                    raise ConnectionError(f"the server ended the call with HTTP/2 error {event.error_code}")
                if isinstance(event, (kinds.ResponseReceived, kinds.TrailersReceived)):
                    yield from event.headers
                ended = ended or isinstance(event, kinds.StreamEnded)
