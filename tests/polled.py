"""A poll of a simulated node, in this process."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from simulated import SimulatedNvml, simulated_node

from gpumon.collectors.nvml.gpu_reader import Extent
from gpumon.collectors.nvml.library import Library
from gpumon.collectors.nvml.poll import NodePoll, start
from gpumon.model import call_progress
from gpumon.model.snapshot import GpuReading, Snapshot


class Poll:
    """A NodePoll with its simulated node."""

    def __init__(
        self, simulation: SimulatedNvml, do_not_open: Collection[str], extent: Extent, patience: float
    ) -> None:
        self.simulation = simulation
        self.page = call_progress.Writer(call_progress.create())
        self.library = Library(self.page)
        self.status = start(self.library)
        self.parts: list[Snapshot] = []
        self.node = NodePoll(
            self.library,
            self.status.driver or "",
            bus=simulation.node.pci_functions,
            do_not_open=do_not_open,
            interval=1.0,
            partial=self.parts.append,
            extent=extent,
            patience=patience,
        )

    def poll(self) -> Snapshot:
        """Return the complete poll in bus order, also if it arrived in several parts."""
        self.parts.clear()
        last = self.node.poll()
        gpus = [gpu for part in (*self.parts, last) for gpu in part.gpus]
        return replace(last, gpus=tuple(sorted(gpus, key=lambda gpu: gpu.bus_id)))

    def poll_all_tiers(self) -> Snapshot:
        """Poll with every tier due, and retry every failed GPU."""
        self.node._due = dict.fromkeys(self.node._due, 0.0)
        for slot in self.node._slots.values():
            slot.retry_at = 0.0
        return self.poll()

    def poll_later(self, *, all_tiers: bool = False) -> Snapshot:
        """Poll late enough for new samples."""
        for slot in self.node._slots.values():
            if slot.turns is not None:
                reader = slot.turns.reader
                reader._monitoring._retry_at = 0.0
                for pair in (reader._monitoring._pair, *reader._instances._pairs.values()):
                    if pair is not None and pair._taken_at is not None:
                        pair._taken_at -= 1.0
        self.simulation.now += 1.0
        return self.poll_all_tiers() if all_tiers else self.poll()

    def gpu(self, index: int) -> GpuReading:
        return self.poll_all_tiers().gpus[index]


@contextmanager
def open_poll(
    profile: str = "h100x8",
    text: str = "",
    *,
    folder: Path | None = None,
    do_not_open: Collection[str] = (),
    extent: Extent | None = None,
    patience: float = math.inf,
) -> Iterator[Poll]:
    """Open the node and its poll.

    `text` is the scenario, which needs a folder. No GPU counts as slow unless the scenario makes it so.
    """
    scenario = None if folder is None else folder / "scenario.yml"
    with simulated_node(profile, scenario, text=text, now=100.0, init=False) as simulation:
        yield Poll(simulation, do_not_open, extent or Extent(), patience)
