"""Calls a method of a gRPC server on a unix socket, without grpcio, which would add 19 MB. Needs the package h2."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from gpumon.clock import boot_clock

_MAX_READ_BYTES = 65_536
_PREFIX = struct.Struct(">BI")
"""What precedes a message: a flag, 1 if it is compressed, and its length."""


def call(path: Path, method: str, message: bytes, *, timeout: float, limit: int) -> tuple[Mapping[str, str], bytes]:
    """Call a method with an encoded message of at most 16,000 bytes.

    Return headers and trailers of the answer, and its message, which is empty unless the status is 0.

    Raise OSError if the socket fails, if the server does not speak HTTP/2, or if the answer takes more than `timeout`
    seconds or `limit` bytes. Raise ImportError, whose text begins with a verb and has the remedy, without h2.
    """
    try:
        from h2.exceptions import H2Error  # noqa: PLC0415 - an optional dependency

        client = _client(method, message)
    except ImportError as error:
        remedy = "install gpumon[kubernetes], or the package h2 beside gpumon"
        raise ImportError(f"needs a package that is missing ({error}): {remedy}") from error
    answer: dict[str, str] = {}
    body = bytearray()
    try:
        for part in _exchange(client, path, boot_clock() + timeout):
            if isinstance(part, bytes):
                body += part
            else:
                answer.update((name.decode("latin-1"), value.decode("latin-1")) for name, value in part)
            if len(body) > limit + _PREFIX.size:
                raise ConnectionError(f"the answer has more than {limit} bytes")
    except H2Error as error:
        raise ConnectionError(f"the server does not speak HTTP/2: {error!r}") from error
    except TimeoutError as error:
        raise TimeoutError(f"the server did not answer within {timeout:g} s") from error
    return answer, _message(bytes(body)) if answer.get("grpc-status") == "0" else b""


def failure(answer: Mapping[str, str]) -> str | None:
    """Return the status and the text of a call that failed; None for a call that succeeded."""
    status = answer.get("grpc-status")
    text = unquote(answer.get("grpc-message", f"HTTP status {answer.get(':status')}"))
    return None if status == "0" else f"gRPC status {status}: {text}"


def _client(method: str, message: bytes) -> Any:
    """Return an HTTP/2 connection in which the request is queued."""
    from h2.connection import H2Connection  # noqa: PLC0415 - see call

    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": method,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    client = H2Connection()
    client.initiate_connection()
    client.send_headers(1, headers.items())
    client.send_data(1, _PREFIX.pack(0, len(message)) + message, end_stream=True)
    return client


def _exchange(client: Any, path: Path, deadline: float) -> Iterator[bytes | list[tuple[bytes, bytes]]]:
    """Send what `client` has queued, and yield the headers and trailers of the answer, and parts of its body."""
    from h2 import events  # noqa: PLC0415 - see call

    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_remaining(deadline))
        connection.connect(str(path))
        ended = False
        while not ended:
            connection.settimeout(_remaining(deadline))
            connection.sendall(client.data_to_send())
            connection.settimeout(_remaining(deadline))
            data = connection.recv(_MAX_READ_BYTES)
            if not data:
                raise ConnectionError("the server closed the connection without an answer")
            for event in client.receive_data(data):
                if isinstance(event, (events.StreamReset, events.ConnectionTerminated)):
                    raise ConnectionError(f"the server ended the call with HTTP/2 error {event.error_code}")
                if isinstance(event, (events.ResponseReceived, events.TrailersReceived)):
                    yield event.headers
                if isinstance(event, events.DataReceived):
                    client.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                    yield event.data
                ended = ended or isinstance(event, events.StreamEnded)


def _remaining(deadline: float) -> float:
    """Return the seconds until the deadline. Raise TimeoutError if it has passed."""
    if (seconds := deadline - boot_clock()) <= 0:
        raise TimeoutError
    return seconds


def _message(body: bytes) -> bytes:
    """Return the message of a body. Raise ConnectionError if it is compressed or incomplete."""
    if len(body) < _PREFIX.size:
        raise ConnectionError("the answer has no message")
    compressed, length = _PREFIX.unpack_from(body)
    message = body[_PREFIX.size :]
    if compressed:
        raise ConnectionError("the answer is compressed")
    if len(message) != length:
        raise ConnectionError(f"the answer has {len(message)} bytes instead of {length}")
    return message
