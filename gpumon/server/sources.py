"""Interface between the server and the rest of the agent, so that the server imports nothing from the daemon."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from gpumon.health.clear_request import ClearRequest, ClearResult
from gpumon.model.reading import Page
from gpumon.model.request import AuditEntry, RequestResult
from gpumon.model.time_window import WindowRequest, WindowSelection
from gpumon.outputs.prometheus import Exposition
from gpumon.probe.core.result import ProbeRequest
from gpumon.server.access import Access
from gpumon.server.connections import Refusals
from gpumon.state.report import Report
from gpumon.store.error_events import EventQuery, StoredEvent
from gpumon.store.probe_runs import RunPage, RunQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Values and callables that the routes use. A callable that needs the main loop or the store returns a Future."""

    host: str
    """Name of the host, for responses and the page."""
    latest: Callable[[], Report]
    exposition: Mapping[Page, Callable[[], Exposition]]
    """For each page for Prometheus (/metrics and /metrics/links), the function that returns its content."""
    dcgm: Callable[[Report], str]
    """Returns the text of the page /metrics/dcgm, whose metrics are named as by dcgm-exporter, for a Report."""
    ready: Callable[[], bool]
    """Returns True after the first poll has ended or its deadline has passed, or if the whole node is released."""
    token: Callable[[], str | None]
    """Returns the token that permits changes, or None if there is none. The token file is read at each call, so that
    the token can be rotated.
    """
    access: Access
    """Decides which requests over TCP may read."""
    refusals: Refusals
    allowed_hosts: frozenset[str]
    """Names that the Host header of a request may have, besides IP addresses. "*" allows any name."""
    allowed_hosts_to_read: frozenset[str]
    """Names that the Host header may have if the request changes nothing. Contains "*" if remote hosts can connect,
    because they may use names that the agent cannot determine.
    """
    request_probe: Callable[[str], Future[ProbeRequest]]
    """Requests a run of the probe with this name. The future is done when the run is refused, or when the Report that
    `latest` returns contains the run under its id.
    """
    start_window: Callable[[WindowRequest], Future[RequestResult]]
    """Starts a time window. The future is done when the window is stored and has its full effect, or after a timeout.
    """
    end_windows: Callable[[WindowSelection], Future[RequestResult]]
    """Ends time windows. The future is done when the change is stored, or cannot be stored."""
    clear_verdicts: Callable[[ClearRequest], Future[ClearResult]]
    """Clears verdicts on request of an operator. The future is done when the change is stored, or cannot be stored."""
    accept_inventory: Callable[[Collection[str]], Future[RequestResult]]
    """Accepts the present state of the given GPUs and ports, or of all, as the expected one. The future is done when
    the change is stored or refused.
    """
    find_events: Callable[[EventQuery], Future[tuple[StoredEvent, ...]]]
    """Reads events from the store. The future raises StoreError if the store cannot be read."""
    find_runs: Callable[[RunQuery], Future[RunPage]]
    """Reads probe runs from the store. The future raises StoreError if the store cannot be read."""
    record_change: Callable[[AuditEntry], None]
    """Records in the audit an authorized request to change state or to start work, even if it failed."""
    find_changes: Callable[[int], Future[tuple[AuditEntry, ...]]]
    """Reads the newest audit entries. The argument is their maximum number. The future raises StoreError if the store
    cannot be read.
    """
    runbook_url: str | None
    """Base URL of the runbooks; None if the agent serves them itself."""
    wall: Callable[[], float]
    """Returns the wall time in seconds since the epoch."""
    boot: Callable[[], float]
    """Returns the boot clock (CLOCK_BOOTTIME) in seconds."""
