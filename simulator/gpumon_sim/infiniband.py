"""Simulates files of sysfs, cgroups, systemd and procfs for a node's InfiniBand ports, services and stuck processes."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gpumon.clock import boot_clock
from gpumon.model.infiniband import EFA
from gpumon_sim import job_processes, stuck
from gpumon_sim.board import Profile
from gpumon_sim.effects import RECHECK
from gpumon_sim.gpu_states import body
from gpumon_sim.nic_files import CLASS, Text, card_files, fabric_nics, gpu_files, netdev_files
from gpumon_sim.nic_kinds import LOG_LINE, NIC_KINDS, NicKind
from gpumon_sim.physics import Course
from gpumon_sim.port_counters import (
    CONTAINER,
    COUNTERS,
    EFA_COUNTERS,
    EFA_DEVICE_COUNTERS,
    FILES,
    HARDWARE_COUNTERS,
    NOT_INSTALLED,
    RESTART_SECONDS,
    RESTARTING,
    RUNNING,
    SERVICES,
    STATES,
    TRAFFIC,
    guid,
    narrow,
)
from gpumon_sim.profiles import named
from gpumon_sim.scenario import Scenario, ScenarioFile

CGROUPS = "fs/cgroup/system.slice"
UNITS = "usr/lib/systemd/system"
WANTS = "etc/systemd/system/multi-user.target.wants"

LOAD_SHARE = 0.35
"""Share of a port's rate that is in use while the GPU assigned to the port is under full load."""
WORD = 4

_PROCESS = 4242
"""Process id of the main process of a running service."""


class FileTree:
    """The files of a host by path. A replayed host has none, because a recording contains only NVML's answers."""

    def names(self, folder: str) -> list[str]:
        files, inside = self._files(), f"{folder}/"
        entries = {path[len(inside) :].partition("/")[0] for path in files if path.startswith(inside)}
        if not entries:
            raise _error(errno.ENOENT, folder)
        return sorted(entries)

    def read(self, path: str) -> str:
        text = self._files().get(path)
        if text is None:
            raise _error(errno.ENOENT, path)
        return text() if callable(text) else text

    def exists(self, path: str) -> bool:
        return any(file == path or file.startswith(f"{path}/") for file in self._files())

    def link(self, path: str) -> str:
        return self.read(path)

    def device(self, path: str) -> tuple[int, int] | None:
        return stuck.device(self.read(path))

    def modified(self, path: str) -> float:
        self.read(path)
        return time.time()

    def _files(self) -> Mapping[str, Text]:
        return {}


class SimulatedTree(FileTree):
    """The simulated files of a node, by path below /sys or below the host's root, for the agent's host child.

    Processes with the same inputs read the same content at the same time. `epoch`: start of the simulation on `clock`.
    """

    def __init__(self, profile: Profile, file: ScenarioFile, epoch: float, clock: Callable[[], float]) -> None:
        self._profile = profile
        self._file = file
        self._epoch = epoch
        self._clock = clock
        self._built: tuple[Scenario, Mapping[str, Text]] | None = None
        self.kernel_lines: list[str] = []
        """Lines that a real driver would have written to the kernel log because of the reads so far."""

    def read(self, path: str) -> str:
        while path.startswith(CLASS) and self._fault(self._current_scenario(), path.split("/")[2]).get("hang"):
            time.sleep(RECHECK)
        own = job_processes.read(path, _node_setting(self._current_scenario(), "jobs", ()), self._time())
        return super().read(path) if own is None else own

    def _files(self) -> Mapping[str, Text]:
        scenario = self._current_scenario()
        if self._built is None or self._built[0] is not scenario:
            self._built = scenario, dict(self._make(scenario))
        return self._built[1]

    def _make(self, scenario: Scenario) -> Iterator[tuple[str, Text]]:
        yield from self._services(scenario)
        yield "proc/uptime", lambda: f"{self._time():.2f} 0.00"
        yield from stuck.files(_node_setting(scenario, "stuck_processes", ()), self._time)
        yield from gpu_files(self._profile)
        others = [NIC_KINDS[kind] for kind in _node_setting(scenario, "nics", ())]
        for number, nic in enumerate((*fabric_nics(self._profile), *others)):
            if not self._fault(scenario, nic.device).get("absent"):
                yield from self._nic(scenario, number, nic)

    def _nic(self, scenario: Scenario, number: int, nic: NicKind) -> Iterator[tuple[str, Text]]:
        """Yield (path, content) for each file of the adapter at position `number`."""
        fault, ports, count = self._fault(scenario, nic.device), self._profile.ports, len(self._profile.bus_ids)
        fabric = ports is not None and number < ports.count
        board = f"SIM_{ports.generation}" if ports is not None and fabric else f"SIM_{nic.hca_type}"
        gpu = number % count if ports is not None and fabric and ports.switched else None
        yield from card_files(nic, guid(number, replaced=bool(fault.get("replaced"))), board, gpu)
        downs = self._growing_counter("carrier_downs", fault["carrier_downs"].at) if "carrier_downs" in fault else "0"
        yield from netdev_files(nic, up=fault.get("state", "active") == "active", downs=downs)
        for name, text in self._port(scenario, number, nic, fault):
            file = f"hw_counters/{name}" if nic.driver == EFA and name not in FILES else FILES[name]
            folder = f"{CLASS}/{nic.device}" + ("" if name in EFA_DEVICE_COUNTERS else "/ports/1")
            path = f"{folder}/{file}"
            if name in fault.get("unreadable", ()):
                yield path, self._failing_counter(path, errno.EIO)
            elif nic.limited and file.startswith("counters/"):
                yield path, self._failing_counter(path, errno.EINVAL, LOG_LINE.format(address=nic.address))
            else:
                yield path, text

    def _failing_counter(self, path: str, code: int, *kernel_lines: str) -> Text:
        """Return a read function that raises OSError with this code and adds lines to those of the kernel log."""

        def read() -> str:
            self.kernel_lines += kernel_lines
            raise _error(code, path)

        return read

    def _services(self, scenario: Scenario) -> Iterator[tuple[str, Text]]:
        services = _node_setting(scenario, "services", {})
        yield f"{CGROUPS}/cgroup.events", "populated 1"
        for service, unit in SERVICES.items():
            state = services.get(service, RUNNING if service in self._profile.services else NOT_INSTALLED)
            if state != NOT_INSTALLED:
                yield f"{UNITS}/{unit}", "[Service]"
                yield f"{WANTS}/{unit}", "[Service]"
            if state == CONTAINER:
                yield from stuck.service(service)
            if state in {RUNNING, RESTARTING}:
                yield f"{CGROUPS}/{unit}/cgroup.events", "populated 1\nfrozen 0"
                yield f"{CGROUPS}/{unit}/cgroup.procs", self._process if state == RESTARTING else str(_PROCESS)

    def _port(
        self, scenario: Scenario, number: int, nic: NicKind, fault: Mapping[str, Any]
    ) -> Iterator[tuple[str, Text]]:
        state, physical = STATES["active" if nic.driver == EFA else fault.get("state", "active")]
        generation = self._profile.ports.generation if self._profile.ports else "NDR"
        yield "state", state
        yield "phys_state", physical
        yield "rate", f"{fault.get('rate', nic.gigabits):g} Gb/sec (4X {generation})"
        yield "link_layer", nic.link_layer
        traffic = self._traffic(scenario, number % len(self._profile.bus_ids), nic.gigabits)
        counts: Mapping[str, Any] = fault.get("counters", {})
        own = (*EFA_COUNTERS, *EFA_DEVICE_COUNTERS) if nic.driver == EFA else (*TRAFFIC, *COUNTERS, *HARDWARE_COUNTERS)
        for name in own:
            counted = self._growing_counter(name, counts[name].at) if name in counts else "0"
            yield name, traffic if name in TRAFFIC and name not in counts else counted

    def _growing_counter(self, name: str, at: Callable[[float], float]) -> Text:
        return lambda: str(narrow(name, int(at(self._time()))))

    def _traffic(self, scenario: Scenario, gpu: int, gigabits: float) -> Text:
        course = Course(body(self._profile.board, scenario.identities[gpu]), scenario.workloads[gpu])
        words = gigabits * 1e9 / 8 * LOAD_SHARE / WORD
        return lambda: str(int(course.at(self._time()).point.load_seconds * words))

    def _process(self) -> str:
        """Return the current process id of a service in state `restarting`, which changes every RESTART_SECONDS."""
        return str(_PROCESS + 1 + int(self._time() // RESTART_SECONDS))

    def _time(self) -> float:
        """Return the seconds since the simulation began."""
        return self._clock() - self._epoch

    def _current_scenario(self) -> Scenario:
        self._file.refresh()
        return self._file.current

    @staticmethod
    def _fault(scenario: Scenario, device: str) -> Mapping[str, Any]:
        ports = _node_setting(scenario, "ports", {})
        return {**ports.get("*", {}), **ports.get(device, {})}


def open_tree(
    profile: str, *, scenario: Path | None, epoch: float, clock: Callable[[], float] = boot_clock
) -> SimulatedTree:
    """Return the simulated files of a profile. `epoch` is the start of the simulation in seconds of CLOCK_BOOTTIME.

    Raise SimulationError if the profile does not exist or the scenario is invalid.
    """
    kind = named(profile)
    return SimulatedTree(kind, ScenarioFile(scenario, kind), epoch, clock)


def _node_setting(scenario: Scenario, key: str, none: Any) -> Any:
    return next((value for fault, value in scenario.node if fault.key == key), none)


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)
