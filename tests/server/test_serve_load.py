"""Two hundred clients at once, on any path, leave scrapes and local commands unharmed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from serving import ServedNode, ask

from gpumon.cli.client import Client
from gpumon.server.app import create_app
from gpumon.server.listener import Server, listen, listen_locally

CLIENTS = 200
pytestmark = pytest.mark.slow


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> int:
    """Send one request, read the whole answer, and return its status."""
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    await reader.readexactly(int(head.partition("content-length:")[2].split()[0]))
    return int(head.split()[1])


async def _ask_for_ever(port: int, path: str, answers: list[int]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        while True:
            answers.append(await _ask(reader, writer, path))
    finally:
        writer.close()


@contextmanager
def crowd(port: int, path: str) -> Iterator[list[int]]:
    """Let CLIENTS connections ask for this path without a pause. The list has their answers."""
    answers: list[int] = []
    loop = asyncio.new_event_loop()

    async def run() -> None:
        await asyncio.gather(*(_ask_for_ever(port, path, answers) for _ in range(CLIENTS)), return_exceptions=True)

    task = loop.create_task(run())
    thread = threading.Thread(target=lambda: loop.run_until_complete(asyncio.gather(task, return_exceptions=True)))
    thread.start()
    try:
        yield answers
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        loop.close()


def test_large_documents_are_rendered_once_a_report() -> None:
    """Two requests for the same Report have the same rendering, byte for byte the same object."""
    node = ServedNode()
    app = create_app(node.sources())
    server, tcp = Server(app, node.refusals, node.access), listen("127.0.0.1", 0)
    server.start([tcp])
    paths = ("/openapi.json", *(f"/api/v1/{name}" for name in ("report", "gpus", "links", "ports", "inventory")))
    try:
        port = tcp.getsockname()[1]
        for path in paths:
            assert ask(port, path).status == 200
        first = {name: body for name, (_, body) in app.state.rendered._documents.items()}
        for path in paths:
            assert ask(port, path).status == 200
        assert all(body is first[name] for name, (_, body) in app.state.rendered._documents.items())
        assert set(first) == {"openapi.json", "report", "gpus", "links None", "ports", "inventory"}
    finally:
        server.stop()


@pytest.mark.parametrize(
    "path", ["/", "/docs", "/openapi.json", "/api/v1/report", "/api/v1/links", "/metrics", "/no-such-path"]
)
def test_a_crowd_on_any_path_leaves_scrapes_and_commands_unharmed(path: str, tmp_path: Path) -> None:
    """Each scrape and each local request is answered."""
    node = ServedNode()
    server, tcp = Server(create_app(node.sources()), node.refusals, node.access), listen("127.0.0.1", 0)
    port = tcp.getsockname()[1]
    local = tmp_path / "gpumon.sock"
    server.start([tcp, listen_locally(local)])
    try:
        with crowd(port, path) as answers:
            scrapes = 0
            while scrapes < 10 or len(answers) < 2 * CLIENTS:
                scrapes += 1
                assert ask(port, "/metrics").status == 200
                assert Client(local).get("/api/v1/health", ("level",))
        assert set(answers) == {404 if path == "/no-such-path" else 200}
        assert not any(node.refusals.counts.values())
    finally:
        server.stop()
