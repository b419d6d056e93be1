"""Builds the daemon's services from the configuration, and applies a changed configuration to them."""

from __future__ import annotations

import logging
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

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
from gpumon.runner.rank_process import KilledRanks
from gpumon.runner.runs import ProbeRuns, RunRecord
from gpumon.runner.scheduler import ProbeScheduler
from gpumon.server.app import create_app
from gpumon.server.context import Sources
from gpumon.server.guard import ANY, is_loopback, own_names
from gpumon.server.listener import HttpEndpoint
from gpumon.services.driver_release import DriverRelease, MarkerWatch
from gpumon.services.event_recorder import EventRecorder
from gpumon.services.health_file import HealthFile
from gpumon.services.inventory_acceptance import accept_inventory
from gpumon.services.notifier import Notifier
from gpumon.services.persistence import Heartbeat, Persistence
from gpumon.services.time_windows import HoldEffect, MaintenanceEffect, TimeWindows
from gpumon.services.verdict_writer import VerdictWriter
from gpumon.services.write_behind import WriteBehind
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """All services of one daemon, created by `build`. What the daemon does with them is in `service_table`."""

    loop: Loop
    monitor: Monitor
    persistence: Persistence
    event_recorder: EventRecorder
    verdict_writer: VerdictWriter
    heartbeat: Heartbeat
    samplers: SamplerSupervisor
    host: HostSupervisor
    probe: ProbeRuns
    schedule: ProbeScheduler
    driver_release: DriverRelease
    windows: TimeWindows
    http_endpoint: HttpEndpoint
    health_file: HealthFile
    notifier: Notifier
    epoch: float
    """Boot clock in seconds when the services were built. A simulated node's own time starts at this moment."""


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
    notices: Callable[[], Mapping[str, str | None]] = dict
    """Returns a text for the operator about each current problem, by subject such as "store" or "release"."""


def service_table(services: Services) -> Sequence[Service]:
    """Return the services in the order of their start."""
    persistence, notifier, http_endpoint = services.persistence, services.notifier, services.http_endpoint
    samplers, host, probe, schedule = services.samplers, services.host, services.probe, services.schedule
    driver_release, health_file, epoch = services.driver_release, services.health_file, services.epoch

    def restore(stored: StoredState) -> None:
        for service in table:
            service.restore(stored)

    table = (
        Service(
            start=lambda: persistence.start(restore, on_reopened=lambda: notifier.restore(())),
            stop=persistence.stop,
            tick=persistence.tick,
            notices=lambda: {"store": persistence.notice},
        ),
        Service(start=services.heartbeat.start, stop=services.heartbeat.stop),
        Service(
            start=notifier.start,
            stop=notifier.stop,
            restore=lambda stored: notifier.restore(stored.notified),
            tick=notifier.tick,
            notices=lambda: {"notifications": notifier.notice},
        ),
        Service(
            stop=services.windows.stop,
            apply=lambda configuration: services.windows.apply(max_window_seconds(configuration)),
        ),
        Service(start=services.verdict_writer.start, stop=services.verdict_writer.stop),
        Service(
            start=services.event_recorder.start,
            stop=services.event_recorder.stop,
            restore=services.event_recorder.restore,
        ),
        Service(
            start=probe.start,
            stop=probe.stop,
            starts_children=True,
            running=lambda: probe.running,
            apply=lambda configuration: probe.apply(probe_settings(configuration)),
        ),
        Service(  # started by driver_release, because it must not open a released GPU
            stop=samplers.stop,
            starts_children=True,
            running=lambda: samplers.running,
            apply=lambda configuration: samplers.apply(sampler_orders(configuration, epoch)),
        ),
        Service(
            start=driver_release.start,
            stop=driver_release.stop,
            starts_children=True,
            apply=lambda configuration: driver_release.apply(configuration.release.max_seconds),
            notices=lambda: {"release": driver_release.notice},
        ),
        Service(
            start=host.start,
            stop=host.stop,
            starts_children=True,
            running=lambda: host.running,
            apply=lambda configuration: host.apply(host_orders(configuration, epoch)),
        ),
        Service(
            start=schedule.start,
            stop=schedule.stop,
            starts_children=True,
            tick=schedule.tick,
            apply=lambda configuration: schedule.apply(timetables(configuration)),
        ),
        Service(
            start=http_endpoint.start,
            stop=http_endpoint.stop,
            notices=lambda: http_endpoint.notices | {"web_config": http_endpoint.access.notice},
        ),
        Service(
            start=lambda: health_file.start(on_restored=lambda: systemd.notify("READY=1")),
            stop=health_file.stop,
            restore=lambda _: health_file.update(),
            notices=lambda: {"health_file": health_file.notice},
        ),
    )
    return table


def build(configuration: Configuration) -> Services:
    """Return all services, built from the configuration.

    Raise ListenError if the HTTP server cannot listen on its address, and WebConfigError if its web configuration file
    is invalid.
    """
    core = _core(configuration)

    def record_error(error: ErrorObservation) -> None:
        event_recorder.add_nvml_event(error)

    samplers = SamplerSupervisor(
        core.loop,
        sampler_orders(configuration, core.epoch),
        on_message=core.monitor.take,
        on_state=core.monitor.take,
        on_error=record_error,
    )
    probe = _probe(core, samplers)
    event_recorder = _event_recorder(core, samplers, probe.host.ranks.killed)
    heartbeat = Heartbeat(core.loop, core.writes, core.latest)
    driver_release = _driver_release(core, samplers, probe)
    socket = _socket(configuration)
    http_endpoint = HttpEndpoint(configuration.web, socket, lambda: create_app(_sources(services, configuration)))
    health_file = _health_file(core, socket)

    def record_maintenance() -> None:
        heartbeat.beat()
        health_file.update()

    services = Services(
        loop=core.loop,
        monitor=core.monitor,
        persistence=core.persistence,
        event_recorder=event_recorder,
        verdict_writer=VerdictWriter(core.loop, core.writes, core.latest),
        heartbeat=heartbeat,
        samplers=samplers,
        host=HostSupervisor(
            core.loop,
            host_orders(configuration, core.epoch),
            on_message=core.monitor.take,
            on_state=core.monitor.take,
        ),
        probe=probe,
        schedule=ProbeScheduler(core.loop, probe, timetables(configuration)),
        driver_release=driver_release,
        windows=_windows(core, driver_release, probe, record_maintenance),
        http_endpoint=http_endpoint,
        health_file=health_file,
        notifier=_notifier(core),
        epoch=core.epoch,
    )
    return services


@dataclass(frozen=True, slots=True, kw_only=True)
class _Core:
    """The objects from which `build` creates the services: configuration, loop, monitor and persistence."""

    configuration: Configuration
    loop: Loop
    monitor: Monitor
    persistence: Persistence
    epoch: float

    @property
    def writes(self) -> WriteBehind:
        return self.persistence.writes

    def latest(self) -> Report:
        return self.monitor.latest


def _core(configuration: Configuration) -> _Core:
    loop, epoch, store = Loop(), boot_clock(), configuration.store
    monitor = Monitor(initial_report(configuration, boot_id(), epoch), reducer_settings(configuration))
    persistence = Persistence(
        loop,
        store.path,
        Retention(days=store.retention_days, rows=store.retention_rows),
        publish=monitor.take,
        latest=lambda: monitor.latest,
    )
    return _Core(configuration=configuration, loop=loop, monitor=monitor, persistence=persistence, epoch=epoch)


def _event_recorder(core: _Core, samplers: SamplerSupervisor, killed: KilledRanks) -> EventRecorder:
    def note_xid(bus_id: str, xid: int) -> None:
        """Report an Xid from the kernel log to the sampler supervisor if the GPU is in the agent's inventory."""
        if bus_id in core.latest().inventory.gpus:
            samplers.note_xid(bus_id, xid)

    def is_own(observation: ErrorObservation) -> bool:
        return killed.has_caused(observation, same_pids=not core.latest().host.value(ProcessReadings).contained)

    log = kernel_log_path(core.configuration)
    return EventRecorder(core.loop, core.writes, log, boot_id(), latest=core.latest, on_xid=note_xid, is_own=is_own)


def _probe(core: _Core, samplers: SamplerSupervisor) -> ProbeRuns:
    store = core.configuration.store.path
    return ProbeRuns(
        core.loop,
        PROBES,
        ProbeHost(core.loop, probe_settings(core.configuration), core.latest, samplers.watch),
        publish=core.monitor.take,
        store=core.writes.record_result,
        record=RunRecord(store.with_name(store.name + RUN_RECORD)),
    )


def _driver_release(core: _Core, samplers: SamplerSupervisor, probe: ProbeRuns) -> DriverRelease:
    release = core.configuration.release
    return DriverRelease(
        core.loop,
        MarkerWatch(release.marker, release.max_seconds, core.persistence.record_change),
        samplers=samplers,
        probing=probe,
        latest=core.latest,
        publish=core.monitor.take,
        store_failed=lambda: core.persistence.error is not None,
    )


def _windows(
    core: _Core, driver_release: DriverRelease, probe: ProbeRuns, record_maintenance: Callable[[], None]
) -> TimeWindows:
    return TimeWindows(
        core.loop,
        core.writes,
        {
            WindowKind.RELEASE: driver_release,
            WindowKind.HOLD: HoldEffect(probe),
            WindowKind.MAINTENANCE: MaintenanceEffect(record_maintenance),
        },
        max_seconds=max_window_seconds(core.configuration),
        latest=core.latest,
        publish=core.monitor.take,
    )


def _health_file(core: _Core, socket: Path) -> HealthFile:
    store = core.configuration.store.path.absolute()
    path = core.configuration.health.file or Path(default_paths.default_health_file(store, os.environ))
    return HealthFile(core.loop, path, latest=core.latest, store=store, socket=socket)


def _notifier(core: _Core) -> Notifier:
    configuration = core.configuration
    address = _instance(configuration)
    runbooks = configuration.alerts.runbook_url or f"http://{address}{RUNBOOKS}"
    receivers = configuration.notifications.model_fields_set - {"labels"}
    if receivers and not configuration.alerts.runbook_url and is_loopback(configuration.web.address[0]):
        _log.warning("runbook links in notifications open on this host only: set alerts.runbook_url")
    return Notifier(
        core.loop, configuration.notifications, address, runbooks, latest=core.latest, write=core.persistence.write
    )


def _instance(configuration: Configuration) -> str:
    """Return the `host:port` at which Prometheus most probably scrapes this agent.

    The host is the one in the configured web address. If the server listens on all addresses or only on a loopback
    address, it is the name of this host.
    """
    host, port = configuration.web.address
    name = platform.node() if host in {"", "0.0.0.0", "::"} or is_loopback(host) else host  # noqa: S104 - compared
    return f"{name}:{port}"


def _socket(configuration: Configuration) -> Path:
    store = configuration.store.path.absolute()
    return configuration.web.socket or Path(default_paths.default_socket(store, os.environ))


def _sources(services: Services, configuration: Configuration) -> Sources:
    def latest() -> Report:
        return services.monitor.latest

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
        record_change=services.persistence.record_change,
        find_changes=services.persistence.find_changes,
        runbook_url=configuration.alerts.runbook_url,
        wall=time.time,
        boot=boot_clock,
    )
