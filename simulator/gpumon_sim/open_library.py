"""Opens a simulated host: a profile by its name, or a recording by its path."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

from gpumon.clock import boot_clock
from gpumon.model.orders import SimulationError, is_recording
from gpumon.model.snapshot import HOST
from gpumon_sim import capture
from gpumon_sim.library import Simulated, open_node
from gpumon_sim.pointers import SimLibrary
from gpumon_sim.replay import Replay
from gpumon_sim.replay_calls import find
from gpumon_sim.trace import Trace


class ReplayedNode(Simulated):
    """A host replayed from a recording, which contains neither the lanes of slots nor the number of NVSwitches."""

    def __init__(self, replay: Replay, trace: Trace) -> None:
        super().__init__(SimLibrary(partial(find, replay), trace), HOST)
        self._replay = replay

    def pci_functions(self) -> dict[str, str]:
        return self._recorded(capture.BUS)

    def uuids(self) -> dict[str, str]:
        return self._recorded(capture.UUIDS)

    def _recorded(self, query: str) -> dict[str, str]:
        return dict(capture.by_bus_id(self._replay.recorded, query, self._replay.time()))


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
