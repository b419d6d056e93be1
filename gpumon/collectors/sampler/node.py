"""Which node this child looks at: the real one, or a simulated one behind the same C functions."""

from __future__ import annotations

import ctypes
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pynvml

from gpumon.clock import boot_clock
from gpumon.collectors.nvml import pci
from gpumon.collectors.nvml.place import place
from gpumon.model.bus_id import parsed
from gpumon.model.orders import SamplerOrders, Simulation
from gpumon.model.snapshot import HOST, ChildMessage, DriverStatus
from gpumon.sim import SimulationError

log = logging.getLogger("gpumon.collectors.sampler")

AGAIN_SECONDS = 1.0

NvidiaBus = Callable[[], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What can be known of the GPUs without the driver."""

    bus: NvidiaBus
    """Bus id -> driver bound."""
    uuids: NvidiaBus
    """Bus id -> uuid, as far as it is known without opening a GPU."""
    place: str = HOST
    """One of PLACES: looked at once, for no system becomes another one while a process runs on it."""
    ports: NvidiaBus = dict
    """Bus id -> address of the PCIe port above it."""


def surroundings(orders: SamplerOrders) -> Surroundings:
    """Of a simulated node this puts its library in the place of the driver's."""
    if orders.simulation is None:
        sysfs, procfs = Path(orders.sysfs), Path(orders.procfs)
        where = place(sysfs=sysfs, procfs=procfs, root=Path("/"), environment=os.environ)
        around = Surroundings(lambda: pci.functions(sysfs), lambda: pci.uuids(procfs), where, lambda: pci.ports(sysfs))
    else:
        around = _simulate(orders.simulation)
    return around if orders.record is None else _record(around, orders.record)


def await_surroundings(orders: SamplerOrders, say: Callable[[ChildMessage], None]) -> Surroundings:
    """The same, as soon as there are any: a scenario that is bad may be mended. Meanwhile says what is wrong."""
    while True:
        try:
            return surroundings(orders)
        except SimulationError as error:
            say(DriverStatus(up=False, error="SimulationError", remedy=str(error)))
            time.sleep(AGAIN_SECONDS)


def _simulate(simulation: Simulation) -> Surroundings:
    from gpumon.sim.opening import open_simulated  # noqa: PLC0415 - a real node has no use for it, nor for its memory

    node = open_simulated(
        simulation.profile,
        scenario=Path(simulation.scenario) if simulation.scenario else None,
        epoch=simulation.epoch,
        trace=Path(simulation.trace) if simulation.trace else None,
    )
    pynvml.nvmlLib = node.library
    return Surroundings(node.pci_functions, node.uuids, node.place)


def _record(around: Surroundings, descriptor: int) -> Surroundings:
    """Have all that the driver answers noted, and what is known of its GPUs without it."""
    from gpumon.collectors.sampler.call_recorder import Notes, Recorder  # noqa: PLC0415 - the same
    from gpumon.sim.capture import BUS, UUIDS  # noqa: PLC0415 - the same

    notes = Notes(descriptor)
    library = pynvml.nvmlLib or _driver()
    if library is not None:
        pynvml.nvmlLib = Recorder(library, notes)

    def noted(what: str, look: NvidiaBus) -> NvidiaBus:
        def looked() -> Mapping[str, str]:
            seen = dict(look())
            notes.write(what, boot_clock(), seen)
            return seen

        return looked

    return Surroundings(noted(BUS, around.bus), noted(UUIDS, around.uuids), around.place, around.ports)


def _driver() -> ctypes.CDLL | None:
    """As pynvml loads it; None where there is none, which pynvml then says."""
    try:
        return ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None


def excluded(orders: SamplerOrders, around: Surroundings) -> frozenset[str]:
    """Bus ids that the configuration excludes, however it names them. A uuid that is not known yet is left out."""
    # Unbound ones as well: before the module is loaded no function is bound, and each will be the driver's.
    ours = sorted(bus_id for bus_id, driver in around.bus().items() if driver in {"", "nvidia"})
    uuids = {uuid: bus_id for bus_id, uuid in around.uuids().items()}
    found: set[str] = set()
    for name in orders.exclude:
        if name.isdigit():
            found.update(ours[int(name) : int(name) + 1])
        elif bus_id := parsed(name):
            found.add(bus_id)
        elif name in uuids:
            found.add(uuids[name])
        else:
            log.warning(
                "this GPU is known only once it has been opened; exclude it by its bus id", extra={"uuid": name}
            )
    return frozenset(found)
