"""The interface of the server to the agent: values and callables, without an import of the daemon."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass

from gpumon.health.clear_request import ClearRequest, ClearResult
from gpumon.model.audit_entry import AuditEntry
from gpumon.model.request_result import RequestResult
from gpumon.model.time_window import WindowRequest, WindowSelection
from gpumon.outputs.prometheus import Exposition
from gpumon.probe.core.result import ProbeRequest
from gpumon.server.connections import Refusals
from gpumon.state.report import Report
from gpumon.store.error_events import EventQuery, StoredEvent
from gpumon.store.probe_runs import RunPage, RunQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Values and callables for the routes. Each call comes from the server's thread and returns at once."""

    host: str
    """Name of the host for responses and the page."""
    latest: Callable[[], Report]
    exposition: Callable[[], Exposition]
    ready: Callable[[], bool]
    """Whether the first poll has ended or its deadline has passed."""
    token: Callable[[], str | None]
    """Returns the token for writes; it is read from its file each time, so that it can be rotated. None: no token."""
    refusals: Refusals
    allowed_hosts: frozenset[str]
    """Allowed names in the Host header besides IP addresses; "*" allows any name."""
    allowed_hosts_to_read: frozenset[str]
    """The same for requests that change nothing. An agent that other hosts can reach has names that it cannot know."""
    request_probe: Callable[[str], Future[ProbeRequest]]
    """Requests a run of this probe. When the future is done, `latest` has the run, which clients can read by id."""
    start_window: Callable[[WindowRequest], Future[RequestResult]]
    """Starts a time window. Done when it is stored and its effect is complete, or cannot be completed in time."""
    end_windows: Callable[[WindowSelection], Future[RequestResult]]
    """Ends time windows."""
    clear_verdicts: Callable[[ClearRequest], Future[ClearResult]]
    """Clears verdicts on request of an operator. Done when the change is stored, or cannot be stored."""
    accept_inventory: Callable[[Collection[str]], Future[RequestResult]]
    """Expects the GPUs and ports that are present. Done when the change is stored."""
    find_events: Callable[[EventQuery], Future[tuple[StoredEvent, ...]]]
    """Reads events from the store; the future raises StoreError if the store cannot be read."""
    find_runs: Callable[[RunQuery], Future[RunPage]]
    """Reads runs of the probes from the store; the future raises StoreError if the store cannot be read."""
    record_change: Callable[[AuditEntry], None]
    """Records a request that was authorized."""
    find_changes: Callable[[int], Future[tuple[AuditEntry, ...]]]
    """Reads that many of the newest entries; the future raises StoreError if the store cannot be read."""
    wall: Callable[[], float]
    """Seconds since the epoch."""
    boot: Callable[[], float]
    """CLOCK_BOOTTIME."""
