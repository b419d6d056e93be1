"""The simulated `libnvidia-ml.so.1`: C function pointers that answer for a simulated node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from gpumon.clock import boot_clock
from gpumon.model.orders import SimulationError
from gpumon.sim import (
    batch,
    ecc,
    fabric,
    getters,
    gpm_calls,
    lookups,
    mig_calls,
    minor,
    nvlink,
    nvml_events,
    peer_access,
    process_lists,
    samples,
    system,
)
from gpumon.sim.exports import EXPORTS, Export
from gpumon.sim.pointers import Entry, SimLibrary
from gpumon.sim.profiles import PROFILES
from gpumon.sim.scenario import ScenarioFile
from gpumon.sim.sim_node import SimNode
from gpumon.sim.trace import Trace

_ALL = (
    *(batch, ecc, fabric, getters, gpm_calls, lookups, mig_calls, minor, nvlink, nvml_events, peer_access),
    *(process_lists, samples, system),
)
"""The modules whose functions are exported."""


def exports() -> Mapping[str, Export]:
    """Return all functions. Importing this module registers them."""
    return EXPORTS


class SimulatedNode:
    """A simulated host, as a child process uses it."""

    def __init__(self, node: SimNode, trace: Trace) -> None:
        self._node = node
        self.library = SimLibrary(self._find, trace)
        """The library for `pynvml.nvmlLib`. Keep a reference while any of its functions is in use."""
        self.place = node.scenario().place
        """The detected system, fixed when the process starts."""

    def _find(self, name: str) -> Entry:
        export = EXPORTS.get(name)
        if export is None or self._node.driver < export.since:
            raise AttributeError(f"the simulated library of driver {self._node.driver} has no {name}")
        return Entry(partial(export.function, self._node), export.takes, export.gives)

    def pci_functions(self) -> dict[str, str]:
        """Return the GPUs on the PCI bus: bound driver by bus id, "" for none."""
        scenario = self._node.scenario()
        states = {identity.bus_id: self._node.gpus.state(identity.number) for identity in scenario.identities}
        unloaded = any(fault.key == "driver" and value != "mismatch" for fault, value in scenario.node)
        return {
            bus_id: "" if unloaded and state.bound == "nvidia" else state.bound
            for bus_id, state in states.items()
            if state.on_bus
        }

    def uuids(self) -> dict[str, str]:
        """Return uuids by bus id, as a kernel module lists them without opening a GPU."""
        return {identity.bus_id: identity.uuid for identity in self._node.scenario().identities}


def open_node(
    profile: str,
    *,
    scenario: Path | None,
    epoch: float,
    trace: Path | None = None,
    clock: Callable[[], float] = boot_clock,
) -> SimulatedNode:
    """Open one process's view of the node, equal in every process with the same inputs.

    `epoch` is in seconds of CLOCK_BOOTTIME. With `trace`, calls are counted in `<trace>-<pid>.json`. Raises
    SimulationError for a profile or scenario that cannot be used.
    """
    if profile not in PROFILES:
        raise SimulationError(f"no profile {profile!r} to simulate: choose one of {', '.join(PROFILES)}")
    kind = PROFILES[profile]
    return SimulatedNode(SimNode(kind, ScenarioFile(scenario, kind), epoch, clock), Trace(trace))
