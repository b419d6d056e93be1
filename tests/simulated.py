"""A simulated node below an unmodified pynvml, for tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pynvml
from gpumon_sim.library import SimulatedNode, open_node


@dataclass
class SimulatedNvml:
    """The node, its time (seconds after its epoch) and its scenario file."""

    scenario: Path | None
    now: float = 0.0
    node: SimulatedNode = field(init=False)
    edits: int = 0

    def handles(self) -> list[Any]:
        return [pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(pynvml.nvmlDeviceGetCount())]

    def edit(self, text: str) -> None:
        """Write the scenario so that the next call reads it: old enough, and with its poll due."""
        assert self.scenario is not None
        self.edits += 1
        self.scenario.write_text(text)
        os.utime(self.scenario, (0, 1_000_000 + self.edits))
        self.node._node._file._next_check = 0.0


@contextmanager
def simulated_node(
    profile: str = "h100x8", scenario: Path | None = None, *, text: str = "", now: float = 0.0, init: bool = True
) -> Iterator[SimulatedNvml]:
    """Install the node below pynvml during the block. With `scenario`, that file is written first."""
    simulation = SimulatedNvml(scenario, now)
    if scenario is not None:
        scenario.write_text(text)
    simulation.node = open_node(profile, scenario=scenario, epoch=0.0, clock=lambda: simulation.now)
    before, cached = pynvml.nvmlLib, dict(pynvml._nvmlGetFunctionPointer_cache)
    pynvml._nvmlGetFunctionPointer_cache.clear()
    pynvml.nvmlLib = simulation.node.library
    try:
        if init:
            pynvml.nvmlInit()
        yield simulation
    finally:
        pynvml.nvmlLib = before
        pynvml._nvmlGetFunctionPointer_cache.clear()
        pynvml._nvmlGetFunctionPointer_cache.update(cached)


def answer(call: Any, *arguments: Any) -> int:
    """Return the error code that a call of pynvml raises; 0 if it raises none."""
    try:
        call(*arguments)
    except pynvml.NVMLError as error:
        return int(error.value)
    return 0
