"""The server's life: address, signals, slow clients, end."""

from __future__ import annotations

import contextlib
import http.client
import logging
import select
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from agents import eventually
from serving import BEARER, ServedNode, ask, is_problem, no_descriptor_left, serving

from gpumon.server import connections, listener
from gpumon.server.app import create_app
from gpumon.server.listener import ListenError, Server, listen


def test_address_in_use_is_an_error() -> None:
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
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with serving(ServedNode()) as port:
        assert ask(port, "/-/healthy").status == 200
        assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


def test_stop_frees_the_port_and_ends_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle connections do not delay it, and the address can be used again."""
    monkeypatch.setattr(listener, "SHUTDOWN_SECONDS", 3600)  # a delay of the stop is a timeout of this test
    threads = set(threading.enumerate())
    with serving(ServedNode()) as port:
        idle = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        idle.request("GET", "/-/healthy")
        idle.getresponse().read()
    assert {each.name for each in set(threading.enumerate()) - threads} <= {"asyncio_0"}
    idle.close()
    listen("127.0.0.1", port).close()


def test_server_that_was_never_started_stops() -> None:
    """A start that failed can be cleaned up."""
    node = ServedNode()
    server = Server(create_app(node.sources()), node.refusals, node.access)
    before = threading.enumerate()
    server.stop()
    assert threading.enumerate() == before


def test_idle_client_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that stops in the middle of a request, or of its body, is disconnected too."""
    monkeypatch.setattr(connections, "REQUEST_DEADLINE", 1.0)
    monkeypatch.setattr(listener, "KEEP_ALIVE", 2)
    whole = b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\n\r\n"
    body = b"POST /-/healthy HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nx"
    with serving(ServedNode()) as port:
        for sent in (b"", b"GET /-/hea", whole + b"GET /-/hea", body):
            with socket.create_connection(("127.0.0.1", port), 60) as slow:
                slow.sendall(sent)
                received = b"".join(iter(lambda s=slow: s.recv(4096), b""))  # type: ignore[misc]
                assert received.count(b"200 OK") == sent.count(whole)


def test_connection_stays_open_between_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline is for a request, not for the time between two scrapes."""
    monkeypatch.setattr(connections, "REQUEST_DEADLINE", 1.0)
    with serving(ServedNode()) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/-/healthy")
        connection.getresponse().read()
        first = connection.sock
        threading.Event().wait(1.3)
        connection.request("GET", "/-/healthy")
        assert connection.getresponse().status == 200
        assert connection.sock is first
        connection.close()


def test_a_body_is_left_out_and_pipelined_requests_are_answered_in_order() -> None:
    """A client may send a body that no route reads, and the next request with it."""
    first = b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n" + b"x" * 100_000
    last = b"GET /nope HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with serving(ServedNode()) as port, socket.create_connection(("127.0.0.1", port), 60) as client:
        client.sendall(first + first + last)
        with client.makefile("rb") as answer:
            lines = [line for line in answer.read().splitlines() if line.startswith(b"HTTP/1.1")]
    assert lines == [b"HTTP/1.1 200 OK", b"HTTP/1.1 200 OK", b"HTTP/1.1 404 Not Found"]


def test_concurrent_requests_are_answered() -> None:
    """Two Prometheus servers, a browser and a script at the same time."""
    with serving(ServedNode()) as port, ThreadPoolExecutor(24) as pool:
        paths = ["/metrics", "/", "/api/v1/report", "/live"] * 24
        assert {each.status for each in pool.map(lambda path: ask(port, path), paths)} == {200}


def test_invalid_requests_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    """The server keeps running, and logs nothing: a client sends thousands a second."""
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)  # as after a reload of the configuration
    with serving(ServedNode()) as port:
        with socket.create_connection(("127.0.0.1", port), 60) as peer:
            peer.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")
            assert peer.recv(4096).startswith(b"HTTP/1.1 400")
        assert ask(port, "/-/healthy", headers={"Connection": "Upgrade", "Upgrade": "websocket"}).status == 200
    assert not caplog.records


PARTS = {
    "nothing": b"",
    "half a request": b"GET /-/hea",
    "no more": b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\n\r\n",
}
"""What clients send that then keep their connection."""


@pytest.mark.parametrize("sent", PARTS.values(), ids=PARTS)
def test_idle_clients_shut_no_scrape_out(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    """With too many connections, the one that was idle longest is closed, which is counted."""
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 8)
    node = ServedNode()
    with serving(node) as port, contextlib.ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 60)) for _ in range(20)]
        for client in idle:
            with contextlib.suppress(OSError):
                client.sendall(sent)
                if sent.endswith(b"\r\n\r\n"):
                    client.recv(1)  # not idle before its response
        for _ in range(20):
            assert ask(port, "/metrics").status == 200
        assert node.refusals.counts["connections"] >= 12
        eventually(lambda: sum(map(is_closed, idle)) >= 12)


def is_closed(client: socket.socket) -> bool:
    """Return whether the server has closed this connection, of which everything is read that was sent."""
    client.settimeout(0)
    try:
        while client.recv(4096):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        pass
    return True


def test_clients_that_do_not_read_shut_no_scrape_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that asks for more than the buffers hold, and reads nothing, is idle; its connection ends."""
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 8)
    monkeypatch.setattr(connections, "WRITE_DEADLINE", 0.5)
    with serving(ServedNode()) as port, contextlib.ExitStack() as stack:
        unread = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 60)) for _ in range(8)]
        for client in unread:
            client.sendall(b"GET /api/v1/report HTTP/1.1\r\nHost: localhost\r\n\r\n" * 400)
        for _ in range(20):
            assert ask(port, "/metrics").status == 200
        for client in unread:
            with contextlib.suppress(ConnectionResetError):
                while client.recv(1 << 20):
                    pass


def test_a_client_that_closes_and_does_not_read_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of a response with `Connection: close` has a deadline, also when it fits the agent's own buffer."""
    monkeypatch.setattr(connections, "WRITE_DEADLINE", 0.5)
    monkeypatch.setattr(listener, "SEND_BUFFER", 4096)
    node = ServedNode()
    with serving(node) as port, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.settimeout(60)
        client.connect(("127.0.0.1", port))
        client.sendall(b"GET /api/v1/gpus HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        length = len(ask(port, "/api/v1/gpus").body)
        assert 16_384 < length < 65_536
        poll = select.poll()
        poll.register(client, 0)  # errors only: the client reads nothing
        assert poll.poll(60_000) == [(client.fileno(), select.POLLERR | select.POLLHUP)]


def test_a_client_that_disconnects_leaves_no_deadline(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A deadline that passed after the connection was lost would log an error for each client."""
    monkeypatch.setattr(connections, "WRITE_DEADLINE", 0.0)
    with serving(ServedNode()) as port:
        for _ in range(3):
            assert ask(port, "/-/healthy").status == 200
    assert not caplog.records


def test_connections_are_kept_for_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """While requests wait for the main loop, other requests are refused and /metrics is served."""
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 8)
    monkeypatch.setattr(connections, "KEPT_FOR_METRICS", 4)
    node = ServedNode(answer=None)
    with serving(node) as port, contextlib.ExitStack() as stack:
        for _ in range(4):
            waiting = stack.enter_context(contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)))
            waiting.request("POST", "/probe/allreduce", headers=BEARER)
        while len(node.requests) < 4:
            time.sleep(0.01)
        assert is_problem(ask(port, "/api/v1/node"), 503)
        assert ask(port, "/metrics").status == 200
        assert ask(port, "/-/healthy").status == 200


def test_lack_of_descriptors_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """When descriptors are available again, the waiting client is served."""
    with serving(ServedNode()) as port, socket.socket() as waiting:
        waiting.settimeout(60)
        with no_descriptor_left():
            waiting.connect(("127.0.0.1", port))
            deadline = time.monotonic() + 60
            while not caplog.records and time.monotonic() < deadline:
                time.sleep(0.01)
        waiting.sendall(b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert waiting.recv(4096).startswith(b"HTTP/1.1 200")
    [record] = caplog.records
    assert record.getMessage().startswith("connections cannot be accepted now")


def test_a_damaged_body_is_refused_without_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """A client without credentials could otherwise fill the log."""
    with serving(ServedNode()) as port, socket.create_connection(("127.0.0.1", port), 10) as client:
        client.sendall(b"POST /x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n")
        with client.makefile("rb") as answer:
            assert answer.read().startswith(b"HTTP/1.1 400 ")
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


def test_clients_that_connect_at_once_are_limited_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them ends another one, although the server accepts all of them before it ends any."""
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 8)
    node, listener = ServedNode(), listen("127.0.0.1", 0)
    server = Server(create_app(node.sources()), node.refusals, node.access)
    with contextlib.ExitStack() as clients:
        address = listener.getsockname()
        opened = [clients.enter_context(socket.create_connection(address, 5)) for _ in range(40)]
        server.start([listener])
        try:
            eventually(lambda: len(select.select(opened, [], [], 0)[0]) >= 32)
            ended = len(select.select(opened, [], [], 0)[0])
        finally:
            server.stop()
    assert ended == 32
