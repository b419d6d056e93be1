"""An agent on a simulated node, both in virtual time: the daemon as it is, without its page and its ranks."""

from __future__ import annotations

import math
import os
import resource
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from gpumon_sim.profiles import PROFILES
from typing_extensions import Self

from benchmarks.truth.host import VirtualHost
from gpumon.bootstrap import Services, service_table
from gpumon.clock import BOOT_ID, SIMULATED, boot_clock
from gpumon.config.component_settings import timetables
from gpumon.config.configuration_error import ConfigurationError, ConfigurationProblem
from gpumon.config.model import Configuration
from gpumon.daemon import Daemon
from gpumon.health.policy import BOOT_GRACE
from gpumon.health.verdict import Verdict, VerdictTransition
from gpumon.model.call_progress import Reader
from gpumon.model.time_window import COMMAND, WindowKind, WindowRequest
from gpumon.probe.core.probes import ALL_REDUCE
from gpumon.probe.core.result import ProbeResult
from gpumon.probe.core.settings import Timetable
from gpumon.runner.ranks import Ranks
from gpumon.runner.scheduler import ProbeScheduler
from gpumon.server.listener import HttpEndpoint
from gpumon.services.inventory_acceptance import accept_inventory
from gpumon.state.messages import Message
from gpumon.state.report import Report

POLL_SECONDS = 5.0
_FULL_BYTES = 16384
_PATIENCE = 5.0
"""Real seconds that the store may take for one piece of work."""


class _Schedule(ProbeScheduler):
    """A timetable on the clocks of the simulated host. It starts no run: rows of the tables do."""

    def __init__(self, services: Services, timetables: Mapping[str, Timetable]) -> None:
        super().__init__(services.loop, services.probe, timetables)
        self._timetable = timetables[ALL_REDUCE]
        self._began = 0.0

    def start(self) -> None:
        self._began = boot_clock()

    def tick(self) -> None:
        """Start no run."""

    def next_runs(self) -> Mapping[str, float]:
        passed, interval = boot_clock() - self._began - self._timetable.initial_delay, self._timetable.max_interval
        ahead = max(0, math.ceil(passed / interval)) * interval - passed
        return {ALL_REDUCE: time.time() + ahead}


class _SilentEndpoint(HttpEndpoint):
    """An endpoint that serves nothing."""

    def start(self) -> None:
        pass


class VirtualAgent(Daemon):
    """The daemon without an HTTP server and without ranks."""

    def __init__(self, configuration: Configuration, reread: Callable[[], Configuration]) -> None:
        super().__init__(configuration, reread)
        self.services.http_endpoint.stop()
        self.services.schedule = _Schedule(self.services, timetables(configuration))
        self.services.http_endpoint = _SilentEndpoint(configuration.web, Path("/unused"), FastAPI)
        self._table = service_table(self.services)

    def advance(self, seconds: float) -> None:
        """Let this time pass."""
        self.services.loop.call_after(seconds, self.services.loop.stop)
        self.services.loop.run()

    def settle(self) -> None:
        """Wait until the store has done its work, which takes no virtual time."""
        writer = self.services.persistence._writer
        for _ in range(int(_PATIENCE / 1e-4)):
            if not writer._queue.qsize() and writer._busy_since is None:
                return
            time.sleep(1e-4)

    def die(self) -> None:
        """End as by kill -9: nothing is handed over."""
        self.services.persistence.close()
        self.services.http_endpoint.stop()


def _parts(profile: str, settings: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the settings with `gpus.expected_count` for profiles with a part of a board: see docs/inventory.md."""
    if profile not in {"h100x1", "h100guestx2"}:
        return {}
    gpus = settings.get("gpus", {})
    left = len(PROFILES[profile].bus_ids) - len(gpus.get("exclude", ()))
    return {"gpus": {"expected_count": left, **gpus}}


class World:
    """One node, its host, and the agent on it. Can be entered once."""

    def __init__(
        self,
        profile: str,
        folder: Path,
        scenario: str = "",
        *,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.profile = profile
        self.host = VirtualHost()
        self.host.in_call = lambda process: process.page >= 0 and Reader(process.page).read().running
        self.agent: VirtualAgent
        self._folder = folder
        self._settings = {**dict(settings or {}), **_parts(profile, settings or {})}
        self._scenario = folder / "scenario.yml"
        self._log, self._records = folder / "kmsg", 0
        self._boots = 0
        self._edits = 0
        self._bad = False
        self._plan: list[tuple[float, Callable[[], object]]] = []
        self._log.write_bytes(b"")
        self.edit(scenario)

    def __enter__(self) -> Self:
        self.host.__enter__()
        self._boot()
        self.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self.fill_disk(full=False)
        self.agent.die()
        os.environ.pop(BOOT_ID, None)
        os.environ.pop(SIMULATED, None)
        self.host.__exit__(*problem)

    # The host

    def edit(self, text: str) -> None:
        """Set the scenario: see docs/simulation.md."""
        self._edits += 1
        self.last_edit = text
        self._scenario.write_text(text)
        os.utime(self._scenario, (0, 1_000_000 + self._edits))  # written long ago: it is not being written

    def log_kernel_line(self, text: str) -> None:
        """Write a line to the kernel log."""
        self._records += 1
        seconds = self.host.at - self.host.slept
        with self._log.open("a") as log:
            log.write(f"4,{self._records},{int(seconds * 1e6)},-;{text}\n")

    def planned_reboot(self) -> None:
        """Stop the agent in order, and reboot."""
        self.stop()
        self.reboot()

    def pause(self, seconds: float) -> None:
        """Stop the daemon, as by SIGSTOP; its children continue."""
        end = self.host.at + seconds
        while self.host.at < end:
            self.host.pass_time(end - self.host.at)

    def reboot(self) -> None:
        """Reboot the host, and start the agent with it."""
        self.kill()
        self.host.reboot()
        self._boot()
        self.start()

    def _boot(self) -> None:
        self._boots += 1
        os.environ[SIMULATED], os.environ[BOOT_ID] = self.profile, f"boot-{self._boots}"
        self._log.unlink()
        self._log.write_bytes(b"")
        self.epoch = self.host.at

    # The agent

    @property
    def _services(self) -> Services:
        return self.agent.services

    @property
    def ranks(self) -> Ranks:
        return self._services.probe.host.ranks

    def start(self, **settings: Mapping[str, Any]) -> None:
        """Start the agent with these settings, and keep them for later starts."""
        self._settings |= settings
        self.agent = VirtualAgent(self.configuration(), self._read)
        self.host.settle = self.agent.settle
        self.agent.start()

    def restart(self, **settings: Mapping[str, Any]) -> None:
        """Restart the agent, as by kill -9 and systemd."""
        self.kill()
        self.start(**settings)

    def release(self, seconds: float) -> None:
        """Release the whole node for this time."""
        self._services.windows.start(WindowRequest(kind=WindowKind.RELEASE, seconds=seconds, by=COMMAND))

    def accept(self) -> None:
        """Accept the inventory, as by `gpumon inventory accept`."""
        services = self._services
        accept_inventory(services.loop, services.persistence.writes, lambda: services.monitor.latest)

    def deliver(self, arrival: Message) -> None:
        """Send a message to the daemon."""
        self._services.monitor.take(arrival)

    def record_result(self, result: ProbeResult) -> None:
        """Record the result of a run of the probe, or of a skipped one."""
        self._services.persistence.writes.record(result)

    def hold(self, seconds: float) -> None:
        """Hold the probe, as by `gpumon probe hold`."""
        request = WindowRequest(kind=WindowKind.HOLD, seconds=seconds, by=COMMAND, reason="a job begins", owner="4711")
        self._services.windows.start(request)

    def leave_unkillable(self, pids: Iterable[int]) -> None:
        """Mark these ranks as not ended by SIGKILL."""
        self.ranks._stuck.update(pids)

    def kill_ranks(self, gpus: Iterable[str], first_pid: int) -> None:
        """Kill a rank on each GPU in the middle of an operation: the driver removes its channels, and logs that."""
        for pid, gpu in enumerate(gpus, first_pid):
            self.ranks.killed.add(pid, gpu)
            bus_id = next(state.bus_id for state in self.report.gpus if state.uuid == gpu)
            self.log_kernel_line(f"NVRM: Xid (PCI:{bus_id[4:-2].lower()}): 45, pid={pid}, name=python3, Ch 00000008")

    def lose_records(self) -> None:
        """Skip some records, as if the kernel had overwritten them."""
        self.log_kernel_line("usb 1-1: USB disconnect, device number 2")
        self._records += 50
        self.log_kernel_line("usb 1-1: new high-speed USB device")

    def lose_log(self) -> None:
        """Restart the agent with a kernel log that cannot be read."""
        self.restart(kernel_log={"path": self._log / "no_folder"})

    def reload(self, *, good: bool = True, **settings: Mapping[str, Any]) -> None:
        """Reload, as by SIGHUP, with these settings; if not `good`, from an invalid file."""
        self._settings |= settings
        self._bad = not good
        self._services.loop.post(self.agent.reload)

    def _read(self) -> Configuration:
        if self._bad:
            raise ConfigurationError(
                [ConfigurationProblem("gpumon.yml:3", "poll.interval", "unknown key", "remove it")]
            )
        return self.configuration()

    def fill_disk(self, *, full: bool = True) -> None:
        """Limit the size of this process's files to a few blocks, so that the store cannot grow."""
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (_FULL_BYTES if full else hard, hard))

    def stop(self) -> None:
        """Stop the agent in order."""
        self.agent.stop()

    def kill(self) -> None:
        """End the agent as by kill -9, if it runs; its children end with it."""
        for process in self.host.processes:
            process.end(-9)
        self.agent.die()

    def configuration(self) -> Configuration:
        given: dict[str, dict[str, Any]] = {
            "web": {"listen_address": "127.0.0.1:0", "token_file": self._folder / "token"},
            "store": {"path": self._folder / "gpumon.db"},
            "poll": {"interval_seconds": POLL_SECONDS},
            "simulate": {"profile": self.profile, "scenario": self._scenario},
            "probe": {"enabled": False},
            "release": {"marker": self._folder / "release"},
            "kernel_log": {"path": self._log},
            "health": {"boot_grace_seconds": BOOT_GRACE},  # as on a real node, and this one boots
        }
        merged = {**given, **{name: {**given.get(name, {}), **own} for name, own in self._settings.items()}}
        origins = {f"{section}.{key}": "flag" for section, values in merged.items() for key in values}
        return Configuration.model_validate(merged).with_origins(origins)

    # Time and results

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        """Schedule an action."""
        self._plan.append((self.clock + seconds, action))
        self._plan.sort(key=lambda planned: planned[0])

    def advance(self, seconds: float) -> None:
        """Let this time pass, and run the scheduled actions that are due."""
        end = self.clock + seconds
        while True:
            while self._plan and self._plan[0][0] <= self.clock:
                self._plan.pop(0)[1]()
            due = min(end, self._plan[0][0]) if self._plan else end
            if due <= self.clock:
                return
            self.agent.advance(due - self.clock)

    @property
    def clock(self) -> float:
        """Return seconds since the epoch without steps of the wall clock. Continues over reboots."""
        return round(self.host.booted + self.host.at, 3)

    @property
    def now(self) -> float:
        """Return seconds since the last boot of the simulated node."""
        return boot_clock() - self.epoch

    @property
    def report(self) -> Report:
        return self._services.monitor.latest

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        return self.report.health.verdicts

    @property
    def transitions(self) -> tuple[VerdictTransition, ...]:
        return self.report.health.history
