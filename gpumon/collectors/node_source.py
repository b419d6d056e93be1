"""The simulator as the agent sees it: another distribution, `gpumon-sim`, which it finds by an entry point."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gpumon.model.orders import Simulation, SimulationError

if TYPE_CHECKING:  # the sampler child does not load the module, to save memory
    from gpumon.collectors.host.reader import Files

GROUP = "gpumon.node_source"
"""Group of the entry point that names an object with the protocol NodeSource."""
MISSING = (
    "a simulated node needs the simulator: install the wheel gpumon_sim of this release, or in a checkout "
    "`pip install ./simulator`"
)


class NodeWithoutGpu(Protocol):
    """What the sampler child reads instead of a driver and of sysfs, as HostContext in sampler/node_reader.py."""

    library: Any
    """Replacement for `pynvml.nvmlLib`. Keep a reference while any of its functions is in use."""
    place: str

    def pci_functions(self) -> Mapping[str, str]: ...

    def uuids(self) -> Mapping[str, str]: ...

    def slot_lanes(self) -> Mapping[str, int]: ...

    def nvswitches(self) -> int: ...


class NodeSource(Protocol):
    """Opens nodes without a GPU. All processes that open the same simulation read the same node."""

    def profiles(self) -> Collection[str]:
        """Return the names of the profiles, in order."""

    def problem(self, profile: str, scenario: Path | None) -> str:
        """Return why a profile (or recording) cannot be simulated with a scenario; an empty string if it can.

        This does not load the C functions of the simulation into the process that asks.
        """

    def open_node(self, simulation: Simulation) -> NodeWithoutGpu:
        """Return a node. Raise SimulationError if its profile, scenario or recording cannot be used."""

    def open_tree(self, simulation: Simulation) -> Files:
        """Return the files of a node: those below /sys and those below /, as one tree. Raise SimulationError."""


def node_source() -> NodeSource:
    """Return the installed simulator. Raise SimulationError if none is installed."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - a real node needs neither it nor its memory

    for found in entry_points(group=GROUP):
        source: NodeSource = found.load()
        return source
    raise SimulationError(MISSING)
