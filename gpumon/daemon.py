"""The daemon: starts the services, runs their event loop, reloads the configuration and stops the services."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import signal
import time
from collections.abc import Callable

from gpumon import __version__, log, systemd
from gpumon.bootstrap import Services, service_table
from gpumon.clock import boot_clock
from gpumon.config.component_settings import reducer_settings
from gpumon.config.configuration_error import ConfigurationError
from gpumon.config.model import Configuration
from gpumon.config.settings_table import changes, merge_reloaded
from gpumon.model.request import AuditEntry
from gpumon.runner.containment import end_orphans, end_remains, sweep
from gpumon.state.messages import AgentStatus, Tick
from gpumon.state.monitor import BEAT_SECONDS
from gpumon.supervisor.child_process import clear_ambient
from gpumon.supervisor.process_tree import descendants, resident_memory

_log = logging.getLogger("gpumon")

TICK_SECONDS = 5.0
"""Interval in seconds at which checks and alerts are evaluated and the agent's own status is updated."""
STOP_SECONDS = 4.0
"""Maximum seconds to wait for child processes to end at a stop. systemd allows ten seconds for the whole stop."""


class Daemon:
    """The daemon process of `gpumon serve`. It starts the services, runs their loop until a signal, and stops them."""

    def __init__(self, configuration: Configuration, reread: Callable[[], Configuration]) -> None:
        """Build the services. Raise ListenError or WebConfigError if the HTTP server cannot be set up.

        `reread` reads the configuration again, for SIGHUP.
        """
        self.services = Services(configuration)
        self._table = service_table(self.services)
        self._configuration = configuration
        self._reread = reread
        self._notices: dict[str, str] = {}
        self._tick_failed = False

    def run(self) -> int:
        """Run until SIGTERM or SIGINT. Return the exit code 0."""
        loop = self.services.loop
        signal.set_wakeup_fd(loop.wakeup_descriptor, warn_on_full_buffer=False)
        for ending in (signal.SIGTERM, signal.SIGINT):
            signal.signal(ending, lambda *_: loop.stop())
        signal.signal(signal.SIGHUP, lambda *_: loop.post(self.reload))
        self.start()
        loop.run()
        self.stop()
        return 0

    def start(self) -> None:
        """Start the services. systemd gets READY=1 when the health file has the stored verdicts, or after 10 s."""
        services, simulated = self.services, self._configuration.simulate.profile
        node = f"a simulated {simulated}" if simulated else "the GPUs of this host"
        _log.info("gpumon %s monitors %s", __version__, node, extra={"pid": os.getpid()})
        clear_ambient()
        _raise_descriptor_limit()
        with contextlib.suppress(OSError):  # reported when the store is opened
            self._configuration.store.path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        # An earlier agent that was killed may have left probe runs and NCCL's shared memory.
        end_orphans()
        end_remains()
        sweep()
        services.monitor.listeners.append(services.verdict_writer.record_due)
        for service in self._table:
            service.start()
        services.loop.every(BEAT_SECONDS, services.monitor.beat)
        services.loop.every(TICK_SECONDS, self._tick)
        interval = systemd.watchdog_interval()
        if interval is not None:
            services.loop.every(interval / 2, self._feed_watchdog)

    def stop(self) -> None:
        """Stop the child processes first, then the services that record how the children ended, and the store last."""
        systemd.notify("STOPPING=1")
        _log.info("stopping")
        self._stop_services(starts_children=True)
        deadline = boot_clock() + STOP_SECONDS
        while any(service.running() for service in self._table) and boot_clock() < deadline:
            self.services.loop.turn()
        self._stop_services(starts_children=False)

    def _stop_services(self, *, starts_children: bool) -> None:
        for service in reversed(self._table):
            if service.starts_children is starts_children:
                service.stop()

    # Periodic work

    def _feed_watchdog(self) -> None:
        """Send WATCHDOG=1 to systemd, unless a tick raised an exception and none has succeeded since."""
        if not self._tick_failed:
            systemd.notify("WATCHDOG=1")

    def _tick(self) -> None:
        self._tick_failed = True
        self.services.monitor.take(self._agent_state())
        self.services.monitor.take(Tick())
        for service in self._table:
            service.tick()
        self._tick_failed = False

    def _agent_state(self) -> AgentStatus:
        problems = (item for service in self._table for item in service.notices().items())
        notices = {subject: notice for subject, notice in problems if notice}
        return AgentStatus(
            log_messages=log.counts(),
            resident_memory={
                "daemon": resident_memory([os.getpid()]),
                "children": resident_memory(descendants(os.getpid())),
            },
            notices=self._notices | notices,
            **{name: value for service in self._table for name, value in service.status().items()},
        )

    # Reload

    def reload(self) -> None:
        """Read the configuration and apply what needs no restart.

        If it is invalid, log that and keep the active one.
        """
        systemd.notify_reloading()
        self.services.persistence.record_change(AuditEntry(wall=time.time(), request="SIGHUP", client="signal"))
        try:
            configuration = self._reread()
        except ConfigurationError as error:
            _log.error("configuration not reloaded; the last valid one remains active", extra={"problems": str(error)})
            self._notices["configuration"] = f"not reloaded: {error}"
        else:
            self._notices.pop("configuration", None)
            self._apply(configuration)
        systemd.notify("READY=1")

    def _apply(self, read: Configuration) -> None:
        before, self._configuration = self._configuration, merge_reloaded(self._configuration, read)
        for change in changes(before, read):
            effect = "after a restart" if change.restart else "now"
            _log.info("configuration changed", extra={"key": change.name, "value": change.after, "effect": effect})
        if before.xid_rows != self._configuration.xid_rows:
            _log.info("Xid table changed", extra={"file": str(self._configuration.xids.file)})
        log.configure(level=self._configuration.log.level, format=self._configuration.log.format)
        self.services.monitor.apply(reducer_settings(self._configuration))
        for service in self._table:
            service.apply(self._configuration)


def _raise_descriptor_limit() -> None:
    """Raise the soft limit of open descriptors to the hard limit. Each child process needs several descriptors."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:  # the limit is reported as unlimited, but the kernel enforces one
        _log.warning("cannot raise the limit of open descriptors", extra={"error": str(error)})
