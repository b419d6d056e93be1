"""Builds the daemon's services from the configuration, and applies a changed configuration to them."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from starlette.types import ASGIApp

from gpumon.clock import boot_clock, boot_id
from gpumon.config import health_file
from gpumon.config.component_settings import (
    PROBE,
    initial_report,
    kernel_log_path,
    links_orders,
    max_window_seconds,
    probe_settings,
    reducer_settings,
    sampler_orders,
    timetable,
)
from gpumon.config.model import Configuration
from gpumon.model.orders import LinksOrders, SamplerOrders
from gpumon.model.time_window import WindowKind
from gpumon.outputs.prometheus import Renderer
from gpumon.probe.runner.run_record import RunRecord
from gpumon.probe.runner.runs import ProbeRuns
from gpumon.probe.runner.scheduler import ProbeScheduler
from gpumon.server.app import create_app
from gpumon.server.hosts import own_names
from gpumon.server.listener import HttpEndpoint
from gpumon.server.sources import Sources
from gpumon.services.driver_release import DriverRelease
from gpumon.services.event_recorder import EventRecorder
from gpumon.services.health_file import HealthFile
from gpumon.services.heartbeat import Heartbeat
from gpumon.services.inventory_acceptance import InventoryAcceptance
from gpumon.services.message_router import MessageRouter
from gpumon.services.persistence import Persistence
from gpumon.services.release_marker import MarkerWatch
from gpumon.services.time_windows import TimeWindows
from gpumon.services.verdict_writer import VerdictWriter
from gpumon.services.window_effects import HoldEffect, MaintenanceEffect
from gpumon.state.messages import StoredState
from gpumon.state.monitor import Monitor
from gpumon.state.report import Report
from gpumon.store.retention import Retention
from gpumon.supervisor.links_supervisor import LinksSupervisor
from gpumon.supervisor.loop import Loop
from gpumon.supervisor.sampler_supervisor import SamplerSupervisor

RUN_RECORD = ".run.json"
"""Suffix of the store's path: the probe run in progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The services of one daemon.

    A service is started by `start` and stopped by `stop`. Where they apply, `apply` takes changed settings, `tick` is
    called every few seconds, and `notice` is what the operator has to know about the service.
    """

    loop: Loop
    monitor: Monitor
    persistence: Persistence
    event_recorder: EventRecorder
    verdict_writer: VerdictWriter
    heartbeat: Heartbeat
    samplers: SamplerSupervisor
    links: LinksSupervisor
    probe: ProbeRuns
    schedule: ProbeScheduler
    driver_release: DriverRelease
    windows: TimeWindows
    inventory_acceptance: InventoryAcceptance
    front: HttpEndpoint
    health_file: HealthFile
    epoch: float
    """Boot clock at which a simulated node began."""

    @property
    def children_running(self) -> bool:
        """Whether a child process is still running."""
        return self.samplers.running or self.links.running or self.probe.running

    def notices(self) -> dict[str, str]:
        """Return what the operator has to know, by subject."""
        notices = {
            "store": self.persistence.notice,
            "release": self.driver_release.notice,
            "token": self.front.notice,
            "health_file": self.health_file.notice,
        }
        return {subject: notice for subject, notice in notices.items() if notice}

    def apply(self, configuration: Configuration) -> None:
        """Apply a reloaded configuration."""
        self.monitor.apply(reducer_settings(configuration))
        self.samplers.apply(lambda page: sampler_orders(configuration, page, self.epoch))
        self.links.apply(lambda page: links_orders(configuration, page, self.epoch))
        self.probe.apply(probe_settings(configuration))
        self.schedule.apply(timetable(configuration))
        self.driver_release.apply(configuration.release.max_seconds)
        self.windows.apply(max_window_seconds(configuration))


def build(configuration: Configuration) -> Services:
    """Build the services. Raises ListenError if the address of the HTTP server is not available."""
    wiring = _Wiring(configuration)
    return Services(
        loop=wiring.loop,
        monitor=wiring.monitor,
        persistence=wiring.persistence,
        event_recorder=wiring.event_recorder,
        verdict_writer=wiring.verdict_writer,
        heartbeat=wiring.heartbeat,
        samplers=wiring.samplers,
        links=wiring.links,
        probe=wiring.probe,
        schedule=wiring.schedule,
        driver_release=wiring.driver_release,
        windows=wiring.windows,
        inventory_acceptance=wiring.inventory_acceptance,
        front=wiring.front,
        health_file=wiring.health_file,
        epoch=wiring.epoch,
    )


class _Wiring:
    """Builds each service when it is first needed, so that services may refer to each other in any order."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self.loop = Loop()
        self.epoch = boot_clock()
        self._boot_id = boot_id()
        self.monitor = Monitor(
            initial_report(configuration, self._boot_id, self.epoch), reducer_settings(configuration)
        )

    @cached_property
    def persistence(self) -> Persistence:
        store = self._configuration.store
        return Persistence(
            self.loop,
            store.path,
            Retention(days=store.retention_days, rows=store.retention_rows),
            PROBE.name,
            publish=self.monitor.take,
            latest=self._latest,
            on_restored=self._restore,
        )

    @cached_property
    def event_recorder(self) -> EventRecorder:
        return EventRecorder(
            self.loop,
            self.persistence,
            kernel_log_path(self._configuration),
            self._boot_id,
            latest=self._latest,
            on_xid=self._note_xid,
        )

    @cached_property
    def verdict_writer(self) -> VerdictWriter:
        return VerdictWriter(self.loop, self.persistence, self._latest)

    @cached_property
    def heartbeat(self) -> Heartbeat:
        return Heartbeat(self.loop, self.persistence, self._latest)

    @cached_property
    def inventory_acceptance(self) -> InventoryAcceptance:
        return InventoryAcceptance(self.loop, self.persistence, self._latest)

    @cached_property
    def router(self) -> MessageRouter:
        return MessageRouter(self.monitor, self.event_recorder)

    @cached_property
    def samplers(self) -> SamplerSupervisor:
        return SamplerSupervisor(self.loop, self._orders, on_message=self.router.take, on_state=self.monitor.take)

    @cached_property
    def links(self) -> LinksSupervisor:
        return LinksSupervisor(self.loop, self._link_orders, on_snapshot=self.monitor.take, on_state=self.monitor.take)

    @cached_property
    def probe(self) -> ProbeRuns:
        return ProbeRuns(
            self.loop,
            PROBE,
            probe_settings(self._configuration),
            latest=self._latest,
            tell=self.monitor.take,
            keep=self.persistence.record_result,
            watch=self.samplers.watch,
            record=RunRecord(self._beside_store(RUN_RECORD)),
        )

    @cached_property
    def schedule(self) -> ProbeScheduler:
        return ProbeScheduler(self.loop, self.probe, timetable(self._configuration))

    @cached_property
    def driver_release(self) -> DriverRelease:
        release = self._configuration.release
        return DriverRelease(
            self.loop,
            MarkerWatch(release.marker, release.max_seconds),
            samplers=self.samplers,
            probing=self.probe,
            latest=self._latest,
            publish=self.monitor.take,
            store_failed=lambda: self.persistence.error is not None,
        )

    @cached_property
    def windows(self) -> TimeWindows:
        return TimeWindows(
            self.loop,
            self.persistence,
            {
                WindowKind.RELEASE: self.driver_release,
                WindowKind.HOLD: HoldEffect(self.probe),
                WindowKind.MAINTENANCE: MaintenanceEffect(self.heartbeat.beat),
            },
            max_seconds=max_window_seconds(self._configuration),
            latest=self._latest,
            publish=self.monitor.take,
        )

    @cached_property
    def front(self) -> HttpEndpoint:
        return HttpEndpoint(self._configuration.web, self._create_app)

    @cached_property
    def health_file(self) -> HealthFile:
        store = self._configuration.store.path.absolute()
        return HealthFile(
            self.loop,
            self._configuration.health.file or health_file.default_path(store, os.environ),
            latest=self._latest,
            store=store,
            address=self.front.local_address,
        )

    def _create_app(self) -> ASGIApp:
        host, _ = self._configuration.web.address
        return create_app(
            Sources(
                host=platform.node(),
                latest=self._latest,
                exposition=Renderer(self._latest).exposition,
                ready=self.router.is_ready,
                token=self.front.token,
                allowed_hosts=own_names(host) | {name.lower() for name in self._configuration.web.allowed_hosts},
                request_probe=self.probe.request,
                start_window=self.windows.start,
                end_windows=self.windows.end,
                acknowledge=self.verdict_writer.acknowledge,
                accept_inventory=self.inventory_acceptance.request,
                find_events=self.persistence.find_events,
                find_runs=self.persistence.find_runs,
                wall=time.time,
                boot=boot_clock,
            )
        )

    def _restore(self, stored: StoredState) -> None:
        self.event_recorder.restore(stored)
        self.health_file.update()

    def _latest(self) -> Report:
        return self.monitor.latest

    def _orders(self, page: int) -> SamplerOrders:
        return sampler_orders(self._configuration, page, self.epoch)

    def _link_orders(self, page: int) -> LinksOrders:
        return links_orders(self._configuration, page, self.epoch)

    def _note_xid(self, bus_id: str, xid: int) -> None:
        """Report an Xid of the kernel log to the supervisor if it is about a GPU of this agent."""
        if bus_id in self.monitor.latest.internal.inventory.gpus:
            self.samplers.note_xid(bus_id, xid)

    def _beside_store(self, suffix: str) -> Path:
        """Return a path that begins with the store's, because several agents may share a directory."""
        store = self._configuration.store.path
        return store.with_name(store.name + suffix)
