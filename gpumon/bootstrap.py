"""Builds the daemon's services from the configuration, and applies a changed configuration to them."""

from __future__ import annotations

import logging
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gpumon import systemd
from gpumon.clock import boot_clock, boot_id
from gpumon.config import default_paths
from gpumon.config.component_settings import (
    host_orders,
    initial_report,
    kernel_log_path,
    max_window_seconds,
    probe_settings,
    reducer_settings,
    sampler_orders,
    timetables,
)
from gpumon.config.model import Configuration
from gpumon.health.alert_texts import RUNBOOKS
from gpumon.model.error_event import ErrorObservation
from gpumon.model.reading import Page
from gpumon.model.snapshot import ProcessReadings
from gpumon.model.time_window import WindowKind
from gpumon.outputs.dcgm import DcgmPage
from gpumon.outputs.prometheus import Renderer, daemon_process
from gpumon.probe.core.probes import PROBES
from gpumon.runner.probe_host import ProbeHost
from gpumon.runner.runs import ProbeRuns, RunRecord
from gpumon.runner.scheduler import ProbeScheduler
from gpumon.server.app import create_app
from gpumon.server.context import Sources
from gpumon.server.guard import ANY, is_loopback, own_names
from gpumon.server.listener import HttpEndpoint
from gpumon.services.allocation_writer import AllocationWriter
from gpumon.services.driver_release import DriverRelease
from gpumon.services.event_recorder import EventRecorder
from gpumon.services.health_file import HealthFile
from gpumon.services.inventory_acceptance import accept_inventory
from gpumon.services.notifier import Notifier
from gpumon.services.persistence import Heartbeat, Persistence
from gpumon.services.release_marker import MarkerWatch
from gpumon.services.time_windows import HoldEffect, MaintenanceEffect, TimeWindows
from gpumon.services.verdict_writer import VerdictWriter
from gpumon.state.messages import StoredState
from gpumon.state.monitor import Monitor
from gpumon.state.report import Report
from gpumon.store.records import Retention
from gpumon.supervisor.child_supervisor import HostSupervisor
from gpumon.supervisor.loop import Loop
from gpumon.supervisor.sampler_supervisor import SamplerSupervisor

_log = logging.getLogger("gpumon")

READY_SECONDS = 10.0
"""Seconds until the agent counts as ready although no poll has ended, for example because the driver hangs."""
RUN_RECORD = ".run.json"
"""Suffix of the file that records the probe run in progress. It is added to the path of the SQLite store."""


class Services:
    """All services of one daemon. What the daemon does with them is in `service_table`."""

    def __init__(self, configuration: Configuration) -> None:
        """Build the services. Raise ListenError or WebConfigError if the HTTP server cannot be set up."""
        store = configuration.store
        self.configuration = configuration
        self.epoch = boot_clock()
        """Boot clock in seconds. A simulated node's own time starts at this moment."""
        self.loop = Loop()
        self.monitor = Monitor(initial_report(configuration, boot_id(), self.epoch), reducer_settings(configuration))
        take = self.monitor.take
        self.persistence = Persistence(
            self.loop,
            store.path,
            Retention(days=store.retention_days, rows=store.retention_rows),
            publish=take,
            latest=self.latest,
        )
        writes = self.persistence.writes
        self.event_recorder = self._event_recorder()
        self.samplers = SamplerSupervisor(
            self.loop,
            sampler_orders(configuration, self.epoch),
            on_message=take,
            on_state=take,
            on_error=self.event_recorder.add_nvml_event,
        )
        self.host = HostSupervisor(self.loop, host_orders(configuration, self.epoch), on_message=take, on_state=take)
        self.probe = ProbeRuns(
            self.loop,
            PROBES,
            ProbeHost(self.loop, probe_settings(configuration), self.latest, self.samplers.watch),
            publish=take,
            store=writes.record,
            record=RunRecord(store.path.with_name(store.path.name + RUN_RECORD)),
        )
        self.schedule = ProbeScheduler(self.loop, self.probe, timetables(configuration))
        self.heartbeat = Heartbeat(self.loop, writes, self.latest)
        self.verdict_writer = VerdictWriter(self.loop, writes, self.latest)
        self.allocation_writer = AllocationWriter(writes, self.latest)
        self.driver_release, self.windows = self._windows()
        self.http_endpoint, self.health_file = self._outputs()
        self.notifier = self._notifier()

    def latest(self) -> Report:
        return self.monitor.latest

    def _event_recorder(self) -> EventRecorder:
        def note_xid(bus_id: str, xid: int) -> None:
            """Report an Xid from the kernel log to the sampler supervisor if the GPU is in the agent's inventory."""
            if bus_id in self.latest().inventory.gpus:
                self.samplers.note_xid(bus_id, xid)

        def is_own(observation: ErrorObservation) -> bool:
            contained = self.latest().host.value(ProcessReadings).contained
            return self.probe.host.ranks.killed.has_caused(observation, same_pids=not contained)

        return EventRecorder(
            self.loop,
            self.persistence.writes,
            kernel_log_path(self.configuration),
            boot_id(),
            latest=self.latest,
            on_xid=note_xid,
            is_own=is_own,
        )

    def _windows(self) -> tuple[DriverRelease, TimeWindows]:
        def record_maintenance() -> None:
            self.heartbeat.beat()
            self.health_file.update()

        release = self.configuration.release
        driver_release = DriverRelease(
            self.loop,
            MarkerWatch(release.marker, release.max_seconds, self.persistence.record_change),
            samplers=self.samplers,
            probing=self.probe,
            latest=self.latest,
            publish=self.monitor.take,
            store_failed=lambda: self.persistence.error is not None,
        )
        windows = TimeWindows(
            self.loop,
            self.persistence.writes,
            {
                WindowKind.RELEASE: driver_release,
                WindowKind.HOLD: HoldEffect(self.probe),
                WindowKind.MAINTENANCE: MaintenanceEffect(record_maintenance),
            },
            max_seconds=max_window_seconds(self.configuration),
            latest=self.latest,
            publish=self.monitor.take,
        )
        return driver_release, windows

    def _outputs(self) -> tuple[HttpEndpoint, HealthFile]:
        configuration = self.configuration
        store = configuration.store.path.absolute()
        socket = configuration.web.socket or Path(default_paths.default_socket(store, os.environ))
        path = configuration.health.file or Path(default_paths.default_health_file(store, os.environ))
        return (
            HttpEndpoint(configuration.web, socket, lambda: create_app(_sources(self))),
            HealthFile(self.loop, path, latest=self.latest, store=store, socket=socket),
        )

    def _notifier(self) -> Notifier:
        configuration = self.configuration
        address = _instance(configuration)
        runbooks = configuration.alerts.runbook_url or f"http://{address}{RUNBOOKS}"
        receivers = configuration.notifications.model_fields_set - {"labels"}
        if receivers and not configuration.alerts.runbook_url and is_loopback(configuration.web.address[0]):
            _log.warning("runbook links in notifications open on this host only: set alerts.runbook_url")
        return Notifier(
            self.loop,
            configuration.notifications,
            address,
            runbooks,
            latest=self.latest,
            write=self.persistence.submit,
        )


def _nothing(*_: object) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A row of the table of services: what the daemon calls, and when."""

    start: Callable[[], None] = _nothing
    stop: Callable[[], None] = _nothing
    """Called in the reverse order of the starts, but for services that start children before all others."""
    starts_children: bool = False
    running: Callable[[], bool] = bool
    """Returns True while a child process runs, for which a stop waits."""
    restore: Callable[[StoredState], None] = _nothing
    """Called when the Report contains the stored state."""
    tick: Callable[[], None] = _nothing
    """Called every few seconds, after the evaluation of the checks."""
    apply: Callable[[Configuration], None] = _nothing
    """Called with a reloaded configuration."""
    status: Callable[[], Mapping[str, Any]] = dict
    """Returns the fields of AgentStatus that the service provides."""
    notices: Callable[[], Mapping[str, str | None]] = dict
    """Returns a text for the operator about each current problem, by subject such as "store" or "release"."""


def service_table(services: Services) -> Sequence[Service]:
    """Return the services in the order of their start."""

    def restore(stored: StoredState) -> None:
        for service in table:
            service.restore(stored)

    table = (*_recording_services(services, restore), *_reading_services(services), *_answering_services(services))
    return table


def _recording_services(services: Services, restore: Callable[[StoredState], None]) -> Iterator[Service]:
    """Yield the services that store what happens, and notify receivers of it."""
    persistence, notifier, event_recorder = services.persistence, services.notifier, services.event_recorder
    yield Service(
        start=lambda: persistence.start(restore, on_reopened=lambda: notifier.restore(())),
        stop=persistence.stop,
        tick=persistence.tick,
        status=lambda: {"store_up": persistence.error is None},
        notices=lambda: {"store": persistence.notice},
    )
    yield Service(start=services.heartbeat.start, stop=services.heartbeat.stop)
    yield Service(
        start=notifier.start,
        stop=notifier.stop,
        restore=lambda stored: notifier.restore(stored.notified),
        tick=notifier.tick,
        status=lambda: {"notifications": notifier.counts},
        notices=lambda: {"notifications": notifier.notice},
    )
    yield Service(
        stop=services.windows.stop,
        apply=lambda configuration: services.windows.apply(max_window_seconds(configuration)),
    )
    yield Service(start=services.verdict_writer.start, stop=services.verdict_writer.stop)
    yield Service(stop=services.allocation_writer.stop, tick=services.allocation_writer.tick)
    yield Service(
        start=event_recorder.start,
        stop=event_recorder.stop,
        restore=event_recorder.restore,
        status=lambda: {
            "kernel_log_up": event_recorder.log.up,
            "kernel_log_overruns": float(event_recorder.log.overruns),
            "kernel_log_denied": event_recorder.log.denied,
        },
    )


def _reading_services(services: Services) -> Iterator[Service]:
    """Yield the services that start children: ranks of probes, the sampler and the host child."""
    samplers, host, probe, schedule = services.samplers, services.host, services.probe, services.schedule
    driver_release, epoch = services.driver_release, services.epoch
    yield Service(
        start=probe.start,
        stop=probe.stop,
        starts_children=True,
        running=lambda: probe.running,
        apply=lambda configuration: probe.apply(probe_settings(configuration)),
        status=lambda: {"probe_unkillable": probe.host.ranks.unkillable},
    )
    yield Service(  # started by driver_release, because it must not open a released GPU
        stop=samplers.stop,
        starts_children=True,
        running=lambda: samplers.running,
        apply=lambda configuration: samplers.apply(sampler_orders(configuration, epoch)),
    )
    yield Service(
        start=driver_release.start,
        stop=driver_release.stop,
        starts_children=True,
        apply=lambda configuration: driver_release.apply(configuration.release.max_seconds),
        notices=lambda: {"release": driver_release.notice},
    )
    yield Service(
        start=host.start,
        stop=host.stop,
        starts_children=True,
        running=lambda: host.running,
        tick=lambda: host.list_processes(_job_pids(services)),
        apply=lambda configuration: host.apply(host_orders(configuration, epoch)),
    )
    yield Service(
        start=schedule.start,
        stop=schedule.stop,
        starts_children=True,
        tick=schedule.tick,
        apply=lambda configuration: schedule.apply(timetables(configuration)),
        status=lambda: {"next_probes": schedule.next_runs() if probe.host.settings.enabled else {}},
    )


def _job_pids(services: Services) -> set[int]:
    """Return the ids of the processes on the GPUs, without those of the agent's own probe."""
    return {pid for gpu in services.latest().gpus for pid in gpu.pids or ()} - services.probe.host.pids


def _answering_services(services: Services) -> Iterator[Service]:
    """Yield the services that show the Report: the HTTP server and the health file."""
    http_endpoint, health_file = services.http_endpoint, services.health_file
    yield Service(
        start=http_endpoint.start,
        stop=http_endpoint.stop,
        status=lambda: {"http_refused": dict(http_endpoint.refusals.counts)},
        notices=lambda: http_endpoint.notices | {"web_config": http_endpoint.access.notice},
    )
    yield Service(
        start=lambda: health_file.start(on_restored=lambda: systemd.notify("READY=1")),
        stop=health_file.stop,
        restore=lambda _: health_file.update(),
        notices=lambda: {"health_file": health_file.notice},
    )


def _instance(configuration: Configuration) -> str:
    """Return the `host:port` at which Prometheus most probably scrapes this agent.

    The host is the one in the configured web address. If the server listens on all addresses or only on a loopback
    address, it is the name of this host.
    """
    host, port = configuration.web.address
    name = platform.node() if host in {"", "0.0.0.0", "::"} or is_loopback(host) else host  # noqa: S104 - compared
    return f"{name}:{port}"


def _sources(services: Services) -> Sources:
    configuration, latest = services.configuration, services.latest
    host = services.http_endpoint.host
    names = own_names(host) | {name.lower() for name in configuration.web.allowed_hosts}
    return Sources(
        host=platform.node(),
        latest=latest,
        exposition={
            Page.METRICS: Renderer(latest, Page.METRICS, daemon_process).exposition,
            Page.LINKS: Renderer(latest, Page.LINKS).exposition,
        },
        dcgm=DcgmPage(
            host=platform.node(),
            canonical=configuration.metrics.dcgm_names == "canonical",
            host_label=configuration.metrics.dcgm_host_label,
            owner_labels=configuration.metrics.dcgm_owner_labels,
        ).render,
        ready=lambda: latest().has_been_read or boot_clock() > services.epoch + READY_SECONDS,
        token=services.http_endpoint.token,
        access=services.http_endpoint.access,
        refusals=services.http_endpoint.refusals,
        allowed_hosts=names,
        allowed_hosts_to_read=names if is_loopback(host) else frozenset({ANY}),
        request_probe=services.probe.request,
        start_window=services.windows.start,
        end_windows=services.windows.end,
        clear_verdicts=services.verdict_writer.clear,
        accept_inventory=partial(accept_inventory, services.loop, services.persistence.writes, latest),
        find_events=services.persistence.find_events,
        find_runs=services.persistence.find_runs,
        find_allocations=services.persistence.find_allocations,
        record_change=services.persistence.record_change,
        find_changes=services.persistence.find_changes,
        runbook_url=configuration.alerts.runbook_url,
        wall=time.time,
        boot=boot_clock,
    )
