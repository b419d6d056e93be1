"""A real server on a free port over reports that a test chooses, and a client that hides nothing."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import resource
import socket
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import sample_reports as samples
from stores import read

from gpumon.health.clear_request import ClearRequest, ClearResult, requested_clearance
from gpumon.model.allocation import Allocation
from gpumon.model.reading import Page
from gpumon.model.request import AuditEntry, RequestResult
from gpumon.model.time_window import WindowRequest, WindowSelection
from gpumon.outputs.dcgm import DcgmPage
from gpumon.outputs.prometheus import Exposition, Renderer
from gpumon.probe.core.result import ProbeRequest
from gpumon.server.access import Access
from gpumon.server.app import create_app
from gpumon.server.connections import Refusals
from gpumon.server.context import Sources
from gpumon.server.listener import Server, listen
from gpumon.state.report import Report
from gpumon.store import allocations, error_events, probe_runs
from gpumon.store.allocations import AllocationQuery
from gpumon.store.error_events import EventQuery, StoredEvent
from gpumon.store.probe_runs import RunPage, RunQuery
from gpumon.store.store import Store
from gpumon.store.store_error import StoreError

TOKEN = "a-token-of-this-test"
BEARER = {"Authorization": f"Bearer {TOKEN}"}

T = TypeVar("T")
Q = TypeVar("Q")


@dataclass
class ServedNode:
    """What the server is given; a test changes it while it serves."""

    report: Report = field(default_factory=samples.healthy)
    ready: bool = True
    token: str | None = TOKEN
    answer: ProbeRequest | None = field(default_factory=lambda: ProbeRequest(id="run-1", accepted=True))
    """What the main loop says to a request for a run; None says nothing."""
    requests: list[str] = field(default_factory=list)
    """Probes of which a run was asked for."""
    let_go: RequestResult | None = field(default_factory=RequestResult)
    """What the main loop says to a release and to its end; None says nothing."""
    asked: list[tuple[object, ...]] = field(default_factory=list)
    """Releases asked for, and ends of them."""
    changes: list[AuditEntry] = field(default_factory=list)
    """Requests that were authorized."""
    hosts_to_read: frozenset[str] = frozenset()
    """Accepted names for reads; empty: the same as for changes."""
    refusals: Refusals = field(default_factory=Refusals)
    store: Path | None = None
    """A store, which is opened for each question; None: it cannot be read."""

    web_config: Path | None = None
    """The web configuration with certificates and users."""
    read_token: str | None = None
    """The token for reading; None: reading needs none."""

    def __post_init__(self) -> None:
        def read_token() -> str | None:
            return self.read_token

        asked = None if self.read_token is None else read_token
        self.access = Access(self.web_config, self.refusals, token=lambda: self.token, read_token=asked)
        self._renderers = {page: Renderer(self.latest, page) for page in Page}

    def latest(self) -> Report:
        return self.report

    def exposition(self, page: Page = Page.METRICS) -> Exposition:
        return self._renderers[page].exposition()

    def request_probe(self, name: str) -> Future[ProbeRequest]:
        self.requests.append(name)
        future: Future[ProbeRequest] = Future()
        if self.answer is not None:
            future.set_result(self.answer)
        return future

    def start_window(self, request: WindowRequest) -> Future[RequestResult]:
        return self._let_go(request)

    def end_windows(self, selection: WindowSelection) -> Future[RequestResult]:
        return self._let_go(selection)

    def _let_go(self, *asked: object) -> Future[RequestResult]:
        self.asked.append(asked)
        future: Future[RequestResult] = Future()
        if self.let_go is not None:
            future.set_result(self.let_go)
        return future

    def clear_verdicts(self, asked: ClearRequest) -> Future[ClearResult]:
        """As the daemon does, with a store that always answers."""
        health = self.report.health
        answer = requested_clearance(asked, health, {state.uuid for state in self.report.gpus})
        left = {each.key: each for each in health.open.values() if each not in answer.cleared}
        self.report = replace(self.report, health=replace(health, open=left))
        self.asked.append((asked,))
        future: Future[ClearResult] = Future()
        future.set_result(replace(answer, stored=self.store is not None))
        return future

    def find_events(self, query: EventQuery) -> Future[tuple[StoredEvent, ...]]:
        return self._find(error_events.find, query)

    def find_allocations(self, query: AllocationQuery) -> Future[tuple[Allocation, ...]]:
        return self._find(allocations.find, query)

    def find_runs(self, query: RunQuery) -> Future[RunPage]:
        return self._find(probe_runs.find, query)

    def _find(self, find: Callable[[sqlite3.Connection, Q], T], query: Q) -> Future[T]:
        future: Future[T] = Future()
        if self.store is None:
            future.set_exception(StoreError(Path("/var/lib/gpumon.db"), "the disk failed", "look at it"))
        else:
            with Store.open(self.store) as store:
                future.set_result(read(store, find, query))
        return future

    def find_changes(self, limit: int) -> Future[tuple[AuditEntry, ...]]:
        future: Future[tuple[AuditEntry, ...]] = Future()
        future.set_result(tuple(reversed(self.changes))[:limit])
        return future

    def sources(self, allowed_hosts: frozenset[str] = frozenset({"localhost", "gpu-17"})) -> Sources:
        return Sources(
            host="gpu-17",
            latest=self.latest,
            exposition={page: renderer.exposition for page, renderer in self._renderers.items()},
            dcgm=DcgmPage(host="gpu-17").render,
            ready=lambda: self.ready,
            token=lambda: self.token,
            access=self.access,
            refusals=self.refusals,
            allowed_hosts=allowed_hosts,
            allowed_hosts_to_read=self.hosts_to_read or allowed_hosts,
            request_probe=self.request_probe,
            start_window=self.start_window,
            end_windows=self.end_windows,
            clear_verdicts=self.clear_verdicts,
            accept_inventory=self._let_go,
            find_events=self.find_events,
            find_runs=self.find_runs,
            find_allocations=self.find_allocations,
            record_change=lambda entry: self.changes.append(entry),  # noqa: PLW0108 - a test replaces the list,
            find_changes=self.find_changes,
            runbook_url=None,
            wall=lambda: samples.STAMP.wall,
            boot=lambda: samples.STAMP.boot,
        )


@dataclass(frozen=True)
class RawResponse:
    """As it came over the wire: nothing followed, nothing unpacked."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


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


@contextlib.contextmanager
def serving(node: ServedNode, *others: socket.socket) -> Iterator[int]:
    """The port on which the node is served. The server listens on the other sockets too."""
    server, listener = Server(create_app(node.sources()), node.refusals, node.access), listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    server.start([listener, *others])
    try:
        yield port
    finally:
        server.stop()


def ask(port: int, path: str, method: str = "GET", headers: Mapping[str, str] | None = None) -> RawResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, headers=dict(headers or {}))
        response = connection.getresponse()
        return RawResponse(response.status, response.headers, response.read())
    finally:
        connection.close()


def is_problem(answer: RawResponse, status: int) -> bool:
    """Return whether the answer is a problem document with all of its members."""
    members = {"type", "title", "status", "detail", "instance", "remedy"}
    return (
        answer.status == status
        and answer.headers["Content-Type"] == "application/problem+json"
        and members <= set(answer.document)
        and answer.document["status"] == status
        and bool(answer.document["remedy"])
    )
