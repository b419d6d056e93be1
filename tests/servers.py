"""Servers for tests: one that a function answers for, a receiver of notifications, Prometheus and Alertmanager."""

from __future__ import annotations

import contextlib
import json
import ssl
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from agents import running


class HttpRequest(NamedTuple):
    """A request that a server of a test received."""

    path: str
    headers: Any
    body: bytes


@contextlib.contextmanager
def http_server(
    answer: Callable[[HttpRequest], tuple[int, bytes]], port: int = 0, tls: ssl.SSLContext | None = None
) -> Iterator[int]:
    """Run an HTTP server on this port, or a free one. `answer` returns status and body for a GET or POST."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            received = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, body = answer(HttpRequest(self.path, self.headers, received))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815 - the name that http.server calls

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


@dataclass
class Inbox:
    """What a server received. `answers`: codes of the next answers; then the server accepts everything."""

    answers: list[int] = field(default_factory=list)
    failing: Callable[[Any], bool] = lambda _: False
    """Whether the server fails for this message."""
    port: int = 0
    received: list[Any] = field(default_factory=list)
    """Bodies of accepted requests as JSON."""
    headers: list[Any] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def take(self, message: Any, accepted: int) -> int:
        """Record a message if the next answer accepts it, and return that answer."""
        with self.changed:
            answer = self.answers.pop(0) if self.answers else 500 if self.failing(message) else accepted
            if answer == accepted:
                self.received.append(message)
            self.changed.notify_all()
        return answer

    def wait_for(self, count: int) -> list[Any]:
        """Wait until this number of messages was accepted, and return them."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.received) >= count, timeout=60), self.received
            return list(self.received)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"


@contextlib.contextmanager
def http_inbox(*answers: int) -> Iterator[Inbox]:
    """Run an HTTP server. Its first answers have these statuses."""
    inbox = Inbox(list(answers))

    def answer(request: HttpRequest) -> tuple[int, bytes]:
        inbox.headers.append(request.headers)
        return inbox.take(json.loads(request.body), 200), b""

    with http_server(answer) as inbox.port:
        yield inbox


def write_yaml(path: Path, content: object) -> None:
    path.write_text(yaml.safe_dump(content), encoding="utf-8")


def prometheus(folder: Path, port: int, *flags: str) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    """Run Prometheus with `prometheus.yml` of the folder, where it also keeps its data and its log."""
    command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    return running([*command, f"--web.listen-address=127.0.0.1:{port}", *flags], folder / "prometheus.log")


def alertmanager(folder: Path, port: int) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    """Run Alertmanager with `alertmanager.yml` of the folder, where it also keeps its data and its log."""
    command = [
        "prometheus-alertmanager",
        f"--config.file={folder / 'alertmanager.yml'}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
    ]
    return running(command, folder / "alertmanager.log")


def query(port: int, promql: str) -> list[Any]:
    """Return the result of an instant query to a Prometheus."""
    url = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': promql})}"
    with urllib.request.urlopen(url, timeout=30) as answer:
        return list(json.load(answer)["data"]["result"])
