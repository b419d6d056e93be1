"""Posting to receivers: answers that are not the receiver's, and secrets that are not valid."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from agents import free_port
from each_case import each_case

from gpumon.services.delivery import DeliveryError, post


@contextmanager
def answering(answer: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Yield the URL of a server that gives every connection this answer, and the requests that it gets."""
    requests: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    requests.append(connection.recv(65536))
                    connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", requests
        server.shutdown(socket.SHUT_RDWR)


@each_case(
    ("answer", "words", "refused"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not valid HTTP", False),
        (b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n", "401", False),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "404", False),
        (b"HTTP/1.1 502 " + b"x" * 60_000 + b"\r\n\r\n", r"502 x{280,290}$", False),
        (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "400", True),
    ],
)
def test_an_odd_answer_is_a_failed_delivery(answer: bytes, words: str, refused: bool) -> None:  # noqa: FBT001 - a case
    """Only an answer that blames the request itself ends its repetition."""
    with answering(answer) as (url, _), pytest.raises(DeliveryError, match=words) as raised:
        post(url, {})
    assert raised.value.refused is refused


def test_a_receiver_that_does_not_listen_is_an_error_in_plain_words() -> None:
    """The text is that of the operating system, without the type of the error."""
    with pytest.raises(DeliveryError) as raised:
        post(f"http://127.0.0.1:{free_port()}/", {})
    assert str(raised.value) == "Connection refused"


def test_a_redirect_is_not_followed() -> None:
    """The target of a redirect gets neither the token nor a request."""
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as (target, requests):
        redirect = f"HTTP/1.1 302 Found\r\nLocation: {target}/\r\nContent-Length: 0\r\n\r\n".encode()
        with answering(redirect) as (url, _), pytest.raises(DeliveryError, match="302"):
            post(url, {}, "secret")
        assert requests == []


@each_case(("url", "token"), [("hooks.example/secret", ""), ("http://h/ secret", ""), ("http://h/", "a\nsecret")])
def test_an_error_does_not_quote_a_secret(url: str, token: str) -> None:
    """An invalid URL or token is not in the text of the error, which is logged and exported."""
    with pytest.raises(DeliveryError) as raised:
        post(url, {}, token)
    assert "secret" not in str(raised.value)
