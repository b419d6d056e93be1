"""The simulated `libnvidia-ml.so.1`: C function pointers that answer for a node that is not there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from gpumon.clock import boot_clock
from gpumon.sim import (
    SimulationError,
    batch,
    ecc,
    events,
    fabric,
    getters,
    gpm_calls,
    lookups,
    mig_calls,
    minor,
    nvlink,
    peer_access,
    processes,
    samples,
    system,
)
from gpumon.sim.exports import EXPORTS, Export
from gpumon.sim.node import Node
from gpumon.sim.pointers import Entry, Library
from gpumon.sim.profiles import PROFILES
from gpumon.sim.scenario import ScenarioFile
from gpumon.sim.trace import Trace

_ALL = (
    *(batch, ecc, events, fabric, getters, gpm_calls, lookups, mig_calls, minor, nvlink, peer_access, processes),
    *(samples, system),
)
"""The modules whose functions are exported."""


def exports() -> Mapping[str, Export]:
    """All functions: it takes the import of this module to have them all."""
    return EXPORTS


class SimulatedNode:
    """What a child needs of a simulated host."""

    def __init__(self, node: Node, trace: Trace) -> None:
        self._node = node
        self.library = Library(self._find, trace)
        """For `pynvml.nvmlLib`; has to be kept as long as any of its functions is."""
        self.place = node.scenario().place
        """As it was when the process started: no system becomes another one while it runs."""

    def _find(self, name: str) -> Entry:
        export = EXPORTS.get(name)
        if export is None or self._node.driver < export.since:
            raise AttributeError(f"the simulated library of driver {self._node.driver} has no {name}")
        return Entry(partial(export.function, self._node), export.takes, export.gives)

    def pci_functions(self) -> dict[str, str]:
        """GPUs on the PCI bus: bus id -> driver bound, "" for none."""
        states = {identity.bus_id: self._node.state(identity.number) for identity in self._node.identities()}
        unloaded = self._node.unloaded()
        return {
            bus_id: "" if unloaded and state.bound == "nvidia" else state.bound
            for bus_id, state in states.items()
            if state.on_bus
        }

    def uuids(self) -> dict[str, str]:
        """Bus id -> uuid, as a kernel module knows them without opening a GPU."""
        return {identity.bus_id: identity.uuid for identity in self._node.identities()}


def open_node(
    profile: str,
    *,
    scenario: Path | None,
    epoch: float,
    trace: Path | None = None,
    clock: Callable[[], float] = boot_clock,
) -> SimulatedNode:
    """Open one process's view of the node: the same in every process that names the same inputs.

    `epoch` is in seconds of CLOCK_BOOTTIME. With `trace`, calls are counted in `<trace>-<pid>.json`.
    Raises SimulationError for a profile or scenario that cannot be used.
    """
    if profile not in PROFILES:
        raise SimulationError(f"no profile {profile!r} to simulate: choose one of {', '.join(PROFILES)}")
    kind = PROFILES[profile]
    return SimulatedNode(Node(kind, ScenarioFile(scenario, kind), epoch, clock), Trace(trace))
