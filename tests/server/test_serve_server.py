"""The server's life: address, signals, slow clients, end."""

from __future__ import annotations

import contextlib
import http.client
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from serving import Node, ask, serving

from gpumon.server import uvicorn_thread
from gpumon.server.app import create_app
from gpumon.server.uvicorn_thread import ListenError, Server, listen


def test_address_in_use_is_an_error() -> None:
    """The error has the address and how to find the process that uses it."""
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(ListenError, match=rf"127\.0\.0\.1:{port}: Address already in use.*ss -ltnp"):
            listen("127.0.0.1", port)


@pytest.mark.parametrize("host", ["203.0.113.7", "no-such-host.invalid", "2001:db8::7"])
def test_foreign_address_is_an_error(host: str) -> None:
    """An address of another host, or an invalid one."""
    with pytest.raises(ListenError, match=r"cannot listen on .*--web\.listen-address"):
        listen(host, 0)


def test_empty_host_is_every_address() -> None:
    """IPv4 is served by the socket that serves IPv6."""
    with listen("", 0) as bound, socket.create_connection(("127.0.0.1", bound.getsockname()[1]), 5):
        bound.settimeout(5)
        accepted, (host, *_) = bound.accept()
        accepted.close()
    assert host.removeprefix("::ffff:") == "127.0.0.1"


def test_signals_stay_with_the_main_thread() -> None:
    """The server installs no signal handlers."""
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    with serving(Node()) as port:
        assert ask(port, "/-/healthy").status == 200
        assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before


def test_stop_frees_the_port_and_ends_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle connections do not delay it, and the address can be used again."""
    monkeypatch.setattr(uvicorn_thread, "SHUTDOWN_SECONDS", 3600)  # a delay of the stop is a timeout of this test
    threads = set(threading.enumerate())
    with serving(Node()) as port:
        idle = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        idle.request("GET", "/-/healthy")
        idle.getresponse().read()
    assert {one.name for one in set(threading.enumerate()) - threads} <= {"asyncio_0"}
    idle.close()
    listen("127.0.0.1", port).close()


def test_server_that_was_never_started_stops() -> None:
    """A start that failed can be cleaned up."""
    server = Server(create_app(Node().sources()))
    before = threading.enumerate()
    server.stop()
    assert threading.enumerate() == before


def test_idle_client_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that stops in the middle of a request is disconnected too."""
    monkeypatch.setattr(uvicorn_thread, "REQUEST_DEADLINE", 1.0)
    whole = b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serving(Node()) as port:
        for sent in (b"", b"GET /-/hea", whole + b"GET /-/hea"):
            with socket.create_connection(("127.0.0.1", port), 60) as slow:
                slow.sendall(sent)
                received = b"".join(iter(lambda s=slow: s.recv(4096), b""))  # type: ignore[misc]
                assert received.count(b"200 OK") == sent.count(b"\r\n\r\n")


def test_connection_stays_open_between_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline is for a request, not for the time between two scrapes."""
    monkeypatch.setattr(uvicorn_thread, "REQUEST_DEADLINE", 1.0)
    with serving(Node()) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/-/healthy")
        connection.getresponse().read()
        first = connection.sock
        threading.Event().wait(1.3)
        connection.request("GET", "/-/healthy")
        assert connection.getresponse().status == 200
        assert connection.sock is first
        connection.close()


def test_concurrent_requests_are_answered() -> None:
    """Two Prometheus servers, a browser and a script at the same time."""
    with serving(Node()) as port, ThreadPoolExecutor(24) as pool:
        paths = ["/metrics", "/", "/api/v1/report", "/live"] * 24
        assert {one.status for one in pool.map(lambda path: ask(port, path), paths)} == {200}


def test_invalid_requests_are_refused() -> None:
    """The server keeps running."""
    with serving(Node()) as port:
        with socket.create_connection(("127.0.0.1", port), 60) as peer:
            peer.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")
            assert peer.recv(4096).startswith(b"HTTP/1.1 400")
        assert ask(port, "/-/healthy").status == 200


def test_number_of_connections_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Further connections are closed, and there is room again when others close."""
    monkeypatch.setattr(uvicorn_thread, "MAX_CONNECTIONS", 8)
    with serving(Node()) as port:
        mine = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        mine.connect()
        with contextlib.ExitStack() as idle:
            others = [idle.enter_context(socket.create_connection(("127.0.0.1", port), 60)) for _ in range(7)]
            for _ in range(20):
                with socket.create_connection(("127.0.0.1", port), 60) as refused:
                    assert closed(refused)
            mine.request("GET", "/-/healthy")
            assert mine.getresponse().read()
            for other in others:
                other.sendall(b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert other.recv(4096).startswith(b"HTTP/1.1 200")
        mine.close()
        assert any(ask_once(port) for _ in range(100))


def closed(peer: socket.socket) -> bool:
    with contextlib.suppress(ConnectionResetError):
        return peer.recv(1) == b""
    return True


def ask_once(port: int) -> bool:
    """Whether it was answered: connections that have just been closed may still take the places."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        return ask(port, "/-/healthy").status == 200
    time.sleep(0.05)
    return False


@contextlib.contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Nothing more can be opened in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as taken:
        highest = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
        taken.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        with contextlib.suppress(OSError):
            while True:
                taken.callback(os.close, os.dup(0))
        yield


def test_lack_of_descriptors_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """When descriptors are available again, the waiting client is served."""
    with serving(Node()) as port, socket.socket() as waiting:
        waiting.settimeout(60)
        with no_descriptor_left():
            waiting.connect(("127.0.0.1", port))
            deadline = time.monotonic() + 60
            while not caplog.records and time.monotonic() < deadline:
                time.sleep(0.01)
        waiting.sendall(b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert waiting.recv(4096).startswith(b"HTTP/1.1 200")
    assert [record.getMessage() for record in caplog.records] == ["connections cannot be accepted now"]
