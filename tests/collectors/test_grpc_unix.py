"""One gRPC call over a unix socket, to servers that answer in unusual ways."""

from __future__ import annotations

import contextlib
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from each_case import each_case

from gpumon.collectors import grpc_unix

pytest.importorskip("h2", reason="not in this environment")

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import StreamEnded

MAX_PINGS = 50_000
LIMIT = 1000
OK = (("grpc-status", "0"),)


@contextlib.contextmanager
def unix_server(answer: Callable[[socket.socket], None]) -> Iterator[Path]:
    """Answer one connection. Yield the path of the socket."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/s")
        listener.listen()

        def serve() -> None:
            with contextlib.suppress(OSError):  # the client or the test has ended
                connection, _ = listener.accept()
                with connection:
                    answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield Path(folder) / "s"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def receive_request(connection: socket.socket) -> Any:
    """Return the server's side of the connection after the request, with an answer's headers queued."""
    server = H2Connection(H2Configuration(client_side=False))
    server.initiate_connection()
    ended = False
    while not ended:
        connection.sendall(server.data_to_send())
        ended = any(isinstance(event, StreamEnded) for event in server.receive_data(connection.recv(65536)))
    server.send_headers(1, [(":status", "200"), ("content-type", "application/grpc")])
    return server


def answer_with(*parts: bytes, trailers: tuple[tuple[str, str], ...] = OK) -> Callable[[socket.socket], None]:
    """Return a function that answers with one DATA frame a part."""

    def answer(connection: socket.socket) -> None:
        server = receive_request(connection)
        for part in parts:
            server.send_data(1, part)
        server.send_headers(1, trailers, end_stream=True)
        connection.sendall(server.data_to_send())
        while connection.recv(65536):
            pass

    return answer


def ping_for_ever(connection: socket.socket) -> None:
    """Send a PING after each answer to the one before."""
    server = receive_request(connection)
    for _ in range(MAX_PINGS):
        server.ping(b"12345678")
        connection.sendall(server.data_to_send())
        server.receive_data(connection.recv(65536))


def call(path: Path, timeout: float = 60.0) -> tuple[Any, bytes]:
    return grpc_unix.call(path, "/a.B/C", b"question", timeout=timeout, limit=LIMIT)


def framed(message: bytes, *, compressed: int = 0) -> bytes:
    return struct.pack(">BI", compressed, len(message)) + message


def test_a_message_in_several_frames_is_put_together() -> None:
    whole = framed(b"x" * LIMIT)
    with unix_server(answer_with(whole[:3], whole[3:500], b"", whole[500:])) as path:
        headers, message = call(path)
    assert message == b"x" * LIMIT
    assert (headers[":status"], headers["grpc-status"]) == ("200", "0")
    assert grpc_unix.failure(headers) is None


def test_a_failed_call_has_its_status_and_no_message() -> None:
    """What precedes the status in the answer is not checked."""
    trailers = (("grpc-status", "8"), ("grpc-message", "50 %25 more"))
    with unix_server(answer_with(b"\x00", trailers=trailers)) as path:
        headers, message = call(path)
    assert message == b""
    assert grpc_unix.failure(headers) == "gRPC status 8: 50 % more"


@each_case(
    ("body", "error"),
    [
        (framed(b"x" * LIMIT) + b"x", "the answer has more than 1000 bytes"),
        (framed(b"message", compressed=1), "the answer is compressed"),
        (framed(b"message")[:-2], "the answer has 5 bytes instead of 7"),
        (framed(b"message") * 2, "the answer has 19 bytes instead of 7"),
        (b"\x00\x00", "the answer has no message"),
        (b"", "the answer has no message"),
    ],
)
def test_an_invalid_body_is_refused(body: bytes, error: str) -> None:
    with unix_server(answer_with(body)) as path, pytest.raises(ConnectionError, match=error):
        call(path)


def test_a_server_that_only_keeps_the_connection_alive_times_out() -> None:
    """The time limit is that of the whole call, not of each read."""
    with unix_server(ping_for_ever) as path, pytest.raises(TimeoutError, match=r"did not answer within 0\.3 s"):
        call(path, timeout=0.3)


@each_case(
    ("answer", "error"),
    [
        (bytes(9), "does not speak HTTP/2"),
        (b"", "closed the connection without an answer"),
    ],
)
def test_another_server_is_an_error(answer: bytes, error: str) -> None:
    def reply(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(answer)

    with unix_server(reply) as path, pytest.raises(ConnectionError, match=error):
        call(path)
