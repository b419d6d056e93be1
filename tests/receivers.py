"""A receiver of notifications for tests: an HTTP server that answers as it is told."""

from __future__ import annotations

import contextlib
import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


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

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            inbox.headers.append(self.headers)
            self.send_response(inbox.take(body, 200))
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with _running(ThreadingHTTPServer(("127.0.0.1", 0), Handler), inbox):
        yield inbox


@contextlib.contextmanager
def _running(server: socketserver.TCPServer, inbox: Inbox) -> Iterator[None]:
    inbox.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
