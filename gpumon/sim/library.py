"""The simulated `libnvidia-ml.so.1`: C function pointers that answer for a node that is not there."""

from __future__ import annotations

import ctypes
import logging
import time
from _ctypes import FUNCFLAG_CDECL, CFuncPtr
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
    processes,
    samples,
    system,
)
from gpumon.sim.codes import Code, Refusal
from gpumon.sim.exports import EXPORTS, Export
from gpumon.sim.node import Node
from gpumon.sim.profiles import PROFILES
from gpumon.sim.scenario import ScenarioFile
from gpumon.sim.trace import Trace
from gpumon.snapshot.call_page import boot_clock

_logger = logging.getLogger(__name__)
_ALL = (batch, ecc, events, fabric, getters, gpm_calls, lookups, mig_calls, minor, nvlink, processes, samples, system)
"""The modules whose functions are exported."""


class Function(CFuncPtr):
    """A plain C function that answers an int, as ctypes.CDLL hands it out: no argument is converted or checked."""

    _flags_ = FUNCFLAG_CDECL
    _restype_ = ctypes.c_int


class Library:
    """Stands where pynvml keeps its `CDLL`. A function that this driver lacks is an AttributeError, as there."""

    def __init__(self, node: Node, trace: Trace) -> None:
        self._node = node
        self._trace = trace
        self._callbacks: list[Any] = []

    def __getattr__(self, name: str) -> Function:
        export = EXPORTS.get(name)
        if export is None or self._node.driver < export.since:
            raise AttributeError(f"the simulated library of driver {self._node.driver} has no {name}")
        callback = ctypes.CFUNCTYPE(export.gives, *export.takes)(self._entry(export))
        self._callbacks.append(callback)  # the address outlives no callback
        function = Function(ctypes.cast(callback, ctypes.c_void_p).value or 0)
        setattr(self, name, function)
        return function

    def _entry(self, export: Export) -> Callable[..., Any]:
        def entry(*arguments: Any) -> Any:
            started, cpu_started = time.perf_counter(), time.thread_time()
            self._trace.entered(export.name)
            try:
                answer = export.function(self._node, *arguments)
            except Refusal as refusal:
                return refusal.code
            except Exception:
                _logger.exception("simulated %s", export.name)
                return Code.UNKNOWN
            else:
                return Code.SUCCESS if answer is None else answer
            finally:
                self._trace.left(time.perf_counter() - started, time.thread_time() - cpu_started)

        return entry


class SimulatedNode:
    """What a child needs of a simulated host."""

    def __init__(self, node: Node, trace: Trace) -> None:
        self._node = node
        self.library = Library(node, trace)
        """For `pynvml.nvmlLib`; has to be kept as long as any of its functions is."""

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
