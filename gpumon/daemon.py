"""The daemon: wiring only. Builds the parts, ties them to one loop, reloads, and stops them again."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path

from gpumon import __version__, log, systemd
from gpumon.bootstrap import (
    PROBE,
    choices,
    first_report,
    kernel_log,
    link_orders,
    orders,
    same_orders,
    terms,
    timetable,
)
from gpumon.clock import boot_clock, boot_id
from gpumon.config.load import ConfigurationError, changes, reloaded
from gpumon.config.model import Configuration
from gpumon.model.release import NODE
from gpumon.model.snapshot import DriverStatus, Hello, Logged, Message, Snapshot, TrialResult, XidEvent
from gpumon.outputs.prometheus import Renderer
from gpumon.probe.core.schedule import Schedule
from gpumon.probe.runner import cgroup, shared_memory
from gpumon.probe.runner.orphans import end_orphans
from gpumon.probe.runner.prober import Probing
from gpumon.probe.runner.run_record import RunRecord
from gpumon.server.app import create_app
from gpumon.server.hosts import own_names
from gpumon.server.listener import Front
from gpumon.server.sources import Sources
from gpumon.services.event_recorder import Sightings
from gpumon.services.heartbeat import Heartbeat
from gpumon.services.holds import Holding
from gpumon.services.inventory_acceptance import Accepting
from gpumon.services.maintenance_windows import Maintaining
from gpumon.services.persistence import Memories
from gpumon.services.releases import Releasing
from gpumon.services.verdict_writer import Rulings
from gpumon.state.messages import Agent, Tick
from gpumon.state.monitor import BEAT_SECONDS, Monitor
from gpumon.store.store import Retention
from gpumon.supervisor.links import LinksSupervisor
from gpumon.supervisor.loop import Loop
from gpumon.supervisor.samplers import SamplerSupervisor

_log = logging.getLogger("gpumon")

TICK_SECONDS = 5.0
"""How often rules are evaluated and the agent looks at itself."""
RELEASE_RECORD = ".release.json"
"""Behind the name of the store: which release is in force. Read before the first sampler starts, so it is no row."""
RUN_RECORD = ".run.json"
"""Likewise: the run of a probe that is in progress."""
READY_SECONDS = 10.0
"""Deadline of the first poll: after that the agent is ready, whatever the driver does."""
STOP_SECONDS = 4.0
"""How long children have to end; systemd gives the whole stop ten."""


class Daemon:
    """One run of `gpumon serve`. `reread` reads the configuration again, for SIGHUP."""

    def __init__(self, configuration: Configuration, reread: Callable[[], Configuration]) -> None:
        self._configuration = configuration
        self._reread = reread
        self._loop = Loop()
        self._notices: dict[str, str] = {}
        self._first_poll_by = boot_clock() + READY_SECONDS
        self._polled = False
        epoch = boot_clock()
        boot = boot_id()
        self._monitor = Monitor(first_report(configuration, boot, epoch), terms(configuration))
        self._memories = Memories(
            self._loop,
            configuration.store.path,
            Retention(days=configuration.store.retention_days, rows=configuration.store.retention_rows),
            PROBE.name,
            take=self._monitor.take,
            latest=lambda: self._monitor.latest,
            on_recalled=lambda remembered, position: self._sightings.recalled(remembered.events, position),
        )
        self._sightings = Sightings(
            self._loop,
            self._memories,
            kernel_log(configuration),
            boot,
            latest=lambda: self._monitor.latest,
            on_xid=self._note_xid,
        )
        self._rulings = Rulings(self._loop, self._memories, lambda: self._monitor.latest)
        self._heartbeat = Heartbeat(self._loop, self._memories, lambda: self._monitor.latest)
        self._accepting = Accepting(self._loop, self._memories, lambda: self._monitor.latest)
        self._maintaining = Maintaining(
            self._loop,
            self._memories,
            most=configuration.maintenance.max_seconds,
            latest=lambda: self._monitor.latest,
            changed=self._heartbeat.beat,
        )
        self._samplers = SamplerSupervisor(
            self._loop,
            lambda page: orders(self._configuration, page, epoch),
            on_message=self._message,
            on_state=self._monitor.take,
        )
        self._links = LinksSupervisor(
            self._loop,
            lambda page: link_orders(self._configuration, page, epoch),
            on_seen=self._monitor.take,
            on_state=self._monitor.take,
        )
        self._probing = Probing(
            self._loop,
            PROBE,
            choices(configuration),
            latest=lambda: self._monitor.latest,
            tell=self._monitor.take,
            keep=self._memories.keep_result,
            watch=self._samplers.watch,
            record=RunRecord(_beside(configuration.store.path, RUN_RECORD)),
        )
        self._schedule = Schedule(self._probing.scheduled)
        self._holding = Holding(
            self._loop,
            self._memories,
            self._probing,
            most=configuration.probe.hold_max_seconds,
            latest=lambda: self._monitor.latest,
            tell=self._monitor.take,
        )
        self._releasing = Releasing(
            self._loop,
            most=configuration.release.max_seconds,
            marker=configuration.release.marker,
            record=_beside(configuration.store.path, RELEASE_RECORD),
            samplers=self._samplers,
            probing=self._probing,
            latest=lambda: self._monitor.latest,
            tell=self._monitor.take,
        )
        self._front = Front(configuration.web, configuration.store.path)

    def run(self) -> int:
        """Until told to stop. Returns the exit code."""
        self._say_hello()
        _raise_descriptor_limit()
        self._catch_signals()
        self._watch()
        self._front.start(create_app(self._sources()))
        self._schedule.start(timetable(self._configuration))
        self._feed_watchdog()
        systemd.notify("READY=1")
        self._loop.run()
        return self._stop()

    # Start and stop

    def _watch(self) -> None:
        """Begin everything that watches and judges."""
        self._make_state_folder()
        end_orphans()
        cgroup.end_left()
        shared_memory.sweep()  # of ranks that were killed with the agent before this one
        self._memories.start()
        self._probing.recall()
        self._heartbeat.start()
        self._rulings.start()
        self._releasing.start()
        self._sightings.start()
        self._samplers.start()
        self._links.start()
        self._loop.every(BEAT_SECONDS, self._monitor.beat)
        self._loop.every(TICK_SECONDS, self._tick)

    def _say_hello(self) -> None:
        simulated = self._configuration.simulate.profile
        node = f"a simulated {simulated}" if simulated else "the GPUs of this host"
        _log.info("gpumon %s watches %s", __version__, node, extra={"pid": os.getpid()})

    def _make_state_folder(self) -> None:
        """On a fresh host. What goes wrong here, the store will say, with its remedy."""
        with contextlib.suppress(OSError):
            self._configuration.store.path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)

    def _catch_signals(self) -> None:
        signal.set_wakeup_fd(self._loop.wakeup_descriptor, warn_on_full_buffer=False)
        for ending in (signal.SIGTERM, signal.SIGINT):
            signal.signal(ending, lambda *_: self._loop.stop())
        signal.signal(signal.SIGHUP, lambda *_: self._loop.post(self._reload))

    def _sources(self) -> Sources:
        renderer = Renderer(lambda: self._monitor.latest)
        host, _ = self._configuration.web.address
        return Sources(
            host=platform.node(),
            latest=lambda: self._monitor.latest,
            exposition=renderer.exposition,
            ready=self._is_ready,
            token=self._front.token,
            allowed_hosts=own_names(host) | {name.lower() for name in self._configuration.web.allowed_hosts},
            request_probe=self._probing.request,
            request_release=self._releasing.request,
            end_release=self._releasing.end,
            acknowledge=self._rulings.acknowledge,
            accept_inventory=self._accepting.request,
            request_maintenance=self._maintaining.request,
            end_maintenance=self._maintaining.end,
            request_hold=self._holding.request,
            end_hold=self._holding.end,
            find_events=self._memories.find_events,
            find_runs=self._memories.find_runs,
            wall=time.time,
            boot=boot_clock,
        )

    def _is_ready(self) -> bool:
        """A first poll has ended, will not come for now, or has taken too long to be waited for."""
        released = self._monitor.latest.release.covers(NODE)
        return self._polled or released or boot_clock() > self._first_poll_by

    def _stop(self) -> int:
        systemd.notify("STOPPING=1")
        _log.info("stopping")
        self._schedule.stop()
        self._releasing.stop()
        self._samplers.stop()
        self._links.stop()
        self._probing.stop()
        deadline = boot_clock() + STOP_SECONDS
        while (self._samplers.running or self._links.running or self._probing.running) and boot_clock() < deadline:
            self._loop.turn()
        self._front.stop()
        self._sightings.stop()
        self._rulings.stop()
        self._maintaining.stop()
        self._holding.stop()
        self._heartbeat.stop()
        self._memories.boards.keep(self._monitor.latest, all_of_them=True)
        self._memories.ports.keep(self._monitor.latest, all_of_them=True)
        self._memories.close()
        return 0

    # What arrives

    def _message(self, message: Message) -> None:
        if isinstance(message, XidEvent):
            self._sightings.hear(message)
        elif isinstance(message, (Snapshot, DriverStatus)):
            self._monitor.take(message)
            self._polled |= message.complete if isinstance(message, Snapshot) else not message.up
        elif not isinstance(message, (Hello, Logged, TrialResult)):
            self._monitor.take(message)

    def _note_xid(self, bus_id: str, xid: int) -> None:
        """Of the kernel log: it is told of GPUs that are not ours, too."""
        if bus_id in self._monitor.latest.memory.inventory:
            self._samplers.note_xid(bus_id, xid)

    # What happens by itself

    def _tick(self) -> None:
        self._schedule.follow_clock()
        if self._probing.is_due_early():
            _log.info("GPUs were repaired; the next probe comes now")
            self._schedule.bring_forward()
        self._memories.boards.keep(self._monitor.latest)
        self._memories.ports.keep(self._monitor.latest)
        trouble, log_read = self._memories.trouble, self._sightings.log
        own = {"store": self._memories.notice, "release": self._releasing.notice, "token": self._front.notice}
        notices = self._notices | {subject: words for subject, words in own.items() if words}
        self._monitor.take(
            Agent(
                log_messages=log.counts(),
                store_up=trouble is None,
                kernel_log_up=log_read.up,
                kernel_log_overruns=float(log_read.overruns),
                kernel_log_denied=log_read.denied,
                next_probe=self._schedule.next_run() if self._configuration.probe.enabled else None,
                probe_unkillable=self._probing.unkillable,
                notices=notices,
            )
        )
        self._monitor.take(Tick())
        self._rulings.rule()
        self._memories.spans.keep((*self._monitor.latest.maintenances, *self._monitor.latest.holds))

    def _feed_watchdog(self) -> None:
        """From the loop, not from the driver: a hung driver is to be reported, a hung agent to be restarted."""
        interval = systemd.watchdog_interval()
        if interval is not None:
            self._loop.every(interval / 2, lambda: systemd.notify("WATCHDOG=1"))

    def _reload(self) -> None:
        systemd.notify_reloading()
        try:
            configuration = self._reread()
        except ConfigurationError as error:
            _log.error("the configuration is not good; the last good one stays", extra={"problems": str(error)})
            self._notices["configuration"] = f"not reloaded: {error}"
        else:
            self._notices.pop("configuration", None)
            self._apply(configuration)
        systemd.notify("READY=1")

    def _apply(self, read: Configuration) -> None:
        before, after = self._configuration, reloaded(self._configuration, read)
        self._configuration = after
        for change in changes(before, read):
            note = "at the next start" if change.restart else "now"
            _log.info("configuration changed", extra={"key": change.name, "value": change.after, "effect": note})
        if before.xid_rows != after.xid_rows:
            _log.info("what Xids mean has changed", extra={"file": str(after.xids.file)})
        log.configure(level=after.log.level, format=after.log.format)
        self._monitor.change(terms(after))
        self._probing.choices = choices(after)
        self._releasing.most = after.release.max_seconds
        self._maintaining.most = after.maintenance.max_seconds
        self._holding.most = after.probe.hold_max_seconds
        if timetable(before) != timetable(after):
            self._schedule.start(timetable(after))
        if not same_orders(before, after):
            self._samplers.replace("configuration")


def _beside(store: Path, end: str) -> Path:
    """Several agents may have their stores in one folder."""
    return store.with_name(store.name + end)


def _raise_descriptor_limit() -> None:
    """To all that is allowed: who cannot open descriptors cannot start children, nor say so."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:  # unlimited, where the kernel has a limit all the same
        _log.warning("the limit of open descriptors stays", extra={"error": str(error)})
