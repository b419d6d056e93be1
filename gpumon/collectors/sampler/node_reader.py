"""Select the node that the sampler child reads: the real one, or a simulated one with the same C functions of NVML."""

from __future__ import annotations

import ctypes
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pynvml

from gpumon.clock import boot_clock
from gpumon.collectors.nvml import pci
from gpumon.collectors.nvml.place import is_virtual, place
from gpumon.model.bus_id import parse_bus_id
from gpumon.model.orders import SamplerOrders, Simulation, SimulationError
from gpumon.model.snapshot import HOST, ChildMessage, DriverStatus

log = logging.getLogger("gpumon.collectors.sampler")

AGAIN_SECONDS = 1.0

NvidiaBus = Callable[[], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class HostContext:
    """Where the agent runs, and functions that read data about the GPUs from sysfs and procfs without driver calls."""

    bus: NvidiaBus
    """Function that returns the kernel driver bound to each GPU, by bus id."""
    uuids: NvidiaBus
    """Function that returns the UUIDs that the kernel module lists without opening a GPU, by bus id."""
    place: str = HOST
    """Where the agent runs: one of PLACES. It cannot change while the process runs."""
    ports: NvidiaBus = dict
    """Function that returns the bus id of the upstream PCIe port of each GPU, by bus id of the GPU."""
    slot_lanes: Callable[[], Mapping[str, int]] = dict
    """Function that returns how many lanes the upstream PCIe port of each GPU supports, by bus id of the GPU."""
    nvswitches: Callable[[], int] = int
    """Function that returns the number of NVSwitches on the PCI bus."""


def surroundings(orders: SamplerOrders) -> HostContext:
    """Return the host context of the real node or, if the orders request a simulation, of the simulated node.

    For a simulated node, also replace the library that pynvml calls. If the orders request a recording, record all
    answers of the driver. Raise SimulationError if the profile or scenario is invalid.
    """
    if orders.simulation is None:
        sysfs, procfs = Path(orders.sysfs), Path(orders.procfs)
        where = place(sysfs=sysfs, procfs=procfs, root=Path("/"), environment=os.environ)
        around = HostContext(
            bus=lambda: pci.functions(sysfs),
            uuids=lambda: pci.uuids(procfs),
            place=where,
            ports=lambda: pci.ports(sysfs),
            # The virtual port of a guest, and of a container in it, does not show the lanes of the physical slot.
            slot_lanes=dict if is_virtual(sysfs, procfs) else lambda: pci.slot_lanes(sysfs),
            nvswitches=lambda: pci.nvswitches(sysfs),
        )
    else:
        around = _simulate(orders.simulation)
    return around if orders.record is None else _record(around, orders.record)


def await_surroundings(orders: SamplerOrders, send: Callable[[ChildMessage], None]) -> HostContext:
    """Return the host context of the node to read.

    While the profile or scenario of a simulation is invalid, pass the error to `send`, and try again each
    second.
    """
    while True:
        try:
            return surroundings(orders)
        except SimulationError as error:
            send(DriverStatus(up=False, error="SimulationError", remedy=str(error)))
            time.sleep(AGAIN_SECONDS)


def _simulate(simulation: Simulation) -> HostContext:
    from gpumon.sim.open_library import open_simulated  # noqa: PLC0415 - a real node needs neither it nor its memory

    node = open_simulated(
        simulation.profile,
        scenario=Path(simulation.scenario) if simulation.scenario else None,
        epoch=simulation.epoch,
        trace=Path(simulation.trace) if simulation.trace else None,
    )
    pynvml.nvmlLib = node.library
    return HostContext(
        node.pci_functions, node.uuids, node.place, slot_lanes=node.slot_lanes, nvswitches=node.nvswitches
    )


def _record(around: HostContext, descriptor: int) -> HostContext:
    """Make pynvml write every answer of the driver to this file descriptor.

    Return a host context whose functions also write the GPUs and UUIDs that they return to this file.
    """
    from gpumon.sim.capture import BUS, UUIDS  # noqa: PLC0415 - the same
    from gpumon.sim.recording.call_recorder import CallLog, CallRecorder  # noqa: PLC0415 - the same

    notes = CallLog(descriptor)
    library = pynvml.nvmlLib or _driver()
    if library is not None:
        pynvml.nvmlLib = CallRecorder(library, notes)

    def add_log(what: str, list_devices: NvidiaBus) -> NvidiaBus:
        def list_and_log() -> Mapping[str, str]:
            devices = dict(list_devices())
            notes.write(what, boot_clock(), devices)
            return devices

        return list_and_log

    return replace(around, bus=add_log(BUS, around.bus), uuids=add_log(UUIDS, around.uuids))


def _driver() -> ctypes.CDLL | None:
    """Return the NVML library, loaded as pynvml loads it; None if it is missing, which pynvml reports later."""
    try:
        return ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None


def excluded_bus_ids(names: Iterable[str], gpus: Mapping[str, str], uuids: Mapping[str, str]) -> frozenset[str]:
    """Return the bus ids of the GPUs that the configuration excludes by `names`.

    A name is a bus id, a UUID, or a position in PCI order among the GPUs with the kernel driver nvidia or none. `gpus`:
    kernel driver by bus id. `uuids`: UUID by bus id. An excluded UUID that is not in `uuids` is logged and left out.
    """
    # GPUs without a kernel driver count too: before the module nvidia is loaded, no GPU is bound to it.
    ours = sorted(bus_id for bus_id, driver in gpus.items() if driver in {"", "nvidia"})
    by_uuid = {uuid: bus_id for bus_id, uuid in uuids.items()}
    bus_ids: set[str] = set()
    for name in names:
        if name.isdigit():
            bus_ids.update(ours[int(name) : int(name) + 1])
        elif bus_id := parse_bus_id(name):
            bus_ids.add(bus_id)
        elif name in by_uuid:
            bus_ids.add(by_uuid[name])
        else:
            log.warning(
                "an excluded uuid is known only after its GPU was opened; exclude it by its bus id",
                extra={"uuid": name},
            )
    return frozenset(bus_ids)
