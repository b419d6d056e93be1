"""Opens the simulated node: a profile or a recording."""

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
    """A simulated host, as a child process uses it."""

    library: SimLibrary
    """The library for `pynvml.nvmlLib`. Keep a reference while any of its functions is in use."""
    place: str
    """One of PLACES, fixed when this process started."""

    def pci_functions(self) -> dict[str, str]:
        """Return the GPUs on the PCI bus: bound driver by bus id, "" for none."""

    def uuids(self) -> dict[str, str]:
        """Return uuids by bus id, as a kernel module lists them without opening a GPU."""


class ReplayedNode:
    """A recorded host."""

    def __init__(self, replay: Replay, trace: Trace) -> None:
        self._replay = replay
        self.library = SimLibrary(partial(find, replay), trace)
        self.place = HOST

    def pci_functions(self) -> dict[str, str]:
        return dict(capture.bus(self._replay.recorded, self._replay.time()))

    def uuids(self) -> dict[str, str]:
        return dict(capture.uuids(self._replay.recorded, self._replay.time()))


def open_simulated(
    name: str,
    *,
    scenario: Path | None,
    epoch: float,
    trace: Path | None = None,
    clock: Callable[[], float] = boot_clock,
) -> Simulated:
    """Open one process's view, equal in every process with the same inputs: see open_node.

    Raises SimulationError.
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
