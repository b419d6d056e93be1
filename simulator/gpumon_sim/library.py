"""The simulated `libnvidia-ml.so.1`: C function pointers that return the values of a simulated node."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path

from gpumon.clock import boot_clock
from gpumon.model.snapshot import GUEST, SANDBOX
from gpumon_sim import (
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
from gpumon_sim.exports import EXPORTS
from gpumon_sim.pointers import Entry, SimLibrary
from gpumon_sim.profiles import named
from gpumon_sim.scenario import ScenarioFile
from gpumon_sim.signatures import Signature
from gpumon_sim.sim_node import SimNode
from gpumon_sim.trace import Trace

_ALL = (
    *(batch, ecc, fabric, getters, gpm_calls, lookups, mig_calls, minor, nvlink, nvml_events, peer_access),
    *(process_lists, samples, system),
)
"""The modules whose functions the library exports. Importing a module registers its functions."""


_NOT_SIMULATED: Mapping[str, tuple[str, ...]] = {
    "nvmlDeviceGetComputeRunningProcesses_v2": ("handle", "list 24"),
    "nvmlDeviceGetGraphicsRunningProcesses_v2": ("handle", "list 24"),
}
"""Words for the arguments of functions that are recorded and replayed, but that the simulated library does not have."""
DESCRIBED = frozenset({*EXPORTS, *_NOT_SIMULATED})
"""Names of the functions whose arguments are described, so that `signature` has their signature."""
WITHOUT = frozenset(
    {
        "nvmlErrorString",  # does not depend on the node
        "nvmlSystemGetProcessName",  # names processes
        "nvmlDeviceGetSamples",  # returns samples from before the call
        "nvmlDeviceGetRunningProcessDetailList",  # points to another struct; RunningProcesses has the same data
    }
)
"""Functions whose calls are not recorded. A replayed library lacks these functions, except nvmlErrorString."""


@cache
def signature(function: str) -> Signature | None:
    """Return the signature of a function; None if its arguments are not described."""
    words = EXPORTS[function].words if function in EXPORTS else _NOT_SIMULATED.get(function)
    return None if words is None else Signature(words)


class Simulated(ABC):
    """A host that the sampler child reads instead of a real one: simulated from a profile, or replayed."""

    def __init__(self, library: SimLibrary, place: str) -> None:
        self.library = library
        """Replacement for `pynvml.nvmlLib`. Keep a reference while any of its functions is in use."""
        self.place = place
        """Kind of system that the sampler child detects: one of PLACES (host, guest, container, sandbox). Later changes
        of the scenario do not affect it.
        """

    @abstractmethod
    def pci_functions(self) -> dict[str, str]:
        """Return the kernel driver bound to each GPU on the PCI bus, by bus id; "" if no driver is bound or loaded."""

    @abstractmethod
    def uuids(self) -> dict[str, str]:
        """Return the uuid of each GPU, by bus id, as the kernel module lists them without opening a GPU."""

    def slot_lanes(self) -> dict[str, int]:
        """Return the number of PCIe lanes of the port above each GPU, by bus id, as sysfs shows it.

        GPUs without a reported number are left out.
        """
        return {}

    def nvswitches(self) -> int:
        """Return the number of NVSwitches on the PCI bus; 0 if it is unknown."""
        return 0


class SimulatedNode(Simulated):
    """A simulated host, built from a profile and a scenario."""

    def __init__(self, node: SimNode, trace: Trace) -> None:
        super().__init__(SimLibrary(self._find, trace), node.scenario().place)
        self._node = node

    def _find(self, name: str) -> Entry:
        export = EXPORTS.get(name)
        if export is None or self._node.driver < export.since:
            raise AttributeError(f"the simulated library of driver {self._node.driver} has no {name}")
        return Entry(partial(export.function, self._node), Signature(export.words).c_types, export.gives)

    def pci_functions(self) -> dict[str, str]:
        scenario = self._node.scenario()
        if scenario.place == SANDBOX:  # it has no PCI bus
            return {}
        states = {identity.bus_id: self._node.gpus.state(identity.number) for identity in scenario.identities}
        unloaded = any(fault.key == "driver" and value != "mismatch" for fault, value in scenario.node)
        return {
            bus_id: "" if unloaded and state.bound == "nvidia" else state.bound
            for bus_id, state in states.items()
            if state.on_bus
        }

    def slot_lanes(self) -> dict[str, int]:
        if self.place == GUEST:  # its ports are virtual
            return {}
        identities = self._node.scenario().identities
        states = {identity.bus_id: self._node.gpus.state(identity.number) for identity in identities}
        return {bus_id: int(state.slot_width) for bus_id, state in states.items() if state.slot_width}

    def nvswitches(self) -> int:
        return 0 if self.place == SANDBOX else len(self._node.profile.switches)

    def uuids(self) -> dict[str, str]:
        return {identity.bus_id: identity.uuid for identity in self._node.scenario().identities}


def open_node(
    profile: str,
    *,
    scenario: Path | None,
    epoch: float,
    trace: Path | None = None,
    clock: Callable[[], float] = boot_clock,
) -> SimulatedNode:
    """Return a simulated host. Processes with the same inputs get the same answers at the same time (see SimNode).

    `epoch` is the start of the simulation in seconds of CLOCK_BOOTTIME. If `trace` is set, the calls are counted in
    the file `<trace>-<pid>.json`. Raise SimulationError for a profile or scenario that cannot be used.
    """
    kind = named(profile)
    return SimulatedNode(SimNode(kind, ScenarioFile(scenario, kind), epoch, clock), Trace(trace))
