"""Opens a simulated host: a profile by its name, or a recording by its path."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

from gpumon.clock import boot_clock
from gpumon.model.orders import SimulationError, is_recording
from gpumon.model.snapshot import HOST
from gpumon.sim import capture
from gpumon.sim.library import open_node
from gpumon.sim.pointers import SimLibrary
from gpumon.sim.replay import Replay
from gpumon.sim.replay_calls import find
from gpumon.sim.trace import Trace


class Simulated(Protocol):
    """Protocol of a host that the sampler child reads instead of a real one: simulated from a profile, or replayed."""

    library: SimLibrary
    """Replacement for `pynvml.nvmlLib`. Keep a reference while any of its functions is in use."""
    place: str
    """Kind of system that the sampler child detects: one of PLACES (host, guest, container, sandbox). It does not
    change while the child runs.
    """

    def pci_functions(self) -> dict[str, str]:
        """Return the kernel driver bound to each GPU on the PCI bus, by bus id; "" if no driver is bound."""

    def uuids(self) -> dict[str, str]:
        """Return the uuid of each GPU, by bus id, as the kernel module lists them without opening a GPU."""

    def slot_lanes(self) -> dict[str, int]:
        """Return the number of PCIe lanes of the port above each GPU, by bus id, as sysfs shows it.

        GPUs without a reported number are left out.
        """

    def nvswitches(self) -> int:
        """Return the number of NVSwitches on the PCI bus; 0 for a recording, which does not contain their number."""


class ReplayedNode:
    """A host replayed from a recording. It implements the protocol Simulated."""

    def __init__(self, replay: Replay, trace: Trace) -> None:
        self._replay = replay
        self.library = SimLibrary(partial(find, replay), trace)
        self.place = HOST

    def pci_functions(self) -> dict[str, str]:
        return dict(capture.by_bus_id(self._replay.recorded, capture.BUS, self._replay.time()))

    def uuids(self) -> dict[str, str]:
        return dict(capture.by_bus_id(self._replay.recorded, capture.UUIDS, self._replay.time()))

    def slot_lanes(self) -> dict[str, int]:
        return {}  # a recording does not contain them

    def nvswitches(self) -> int:
        return 0  # a recording does not contain their number


def open_simulated(
    name: str,
    *,
    scenario: Path | None,
    epoch: float,
    trace: Path | None = None,
    clock: Callable[[], float] = boot_clock,
) -> Simulated:
    """Return a simulated host if `name` is that of a profile, a replayed host if `name` is the path of a recording.

    The other arguments are those of `open_node` in library.py. Raise SimulationError if the profile, scenario or
    recording cannot be used, or if a scenario is given with a recording.
    """
    if not is_recording(name):
        return open_node(name, scenario=scenario, epoch=epoch, trace=trace, clock=clock)
    if scenario is not None:
        raise SimulationError(
            f"scenario {scenario}: a recording plays what was recorded: name a profile, or no scenario"
        )
    recorded = capture.read(Path(name))
    try:
        return ReplayedNode(Replay(recorded, epoch, clock), Trace(trace))
    except (KeyError, TypeError, ValueError, struct.error) as error:
        raise SimulationError(f"recording {name}: {capture.DAMAGED} ({error!r})") from error
