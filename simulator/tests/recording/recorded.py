"""Record a simulated node in this process at given times, and replay recordings."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import pynvml
from gpumon_sim import capture as captures
from gpumon_sim.capture import BUS, UUIDS, Capture, Header
from gpumon_sim.open_library import ReplayedNode
from gpumon_sim.recording.builder import Builder
from gpumon_sim.recording.call_recorder import CallLog, CallRecorder
from gpumon_sim.recording.mask import Mask
from gpumon_sim.recording.survey import survey
from gpumon_sim.replay import Replay
from gpumon_sim.trace import Trace
from polled import Poll
from simulated import SimulatedNvml, simulated_node

from gpumon.collectors.nvml.gpu_reader import Extent
from gpumon.model.snapshot import Snapshot

BEGAN = 100.0
"""Time after the node's epoch at which recordings start, in seconds."""
HEADER = Header(
    gpumon="0.1.0",
    wall="2026-11-20T12:00:00+00:00",
    seconds=5.0,
    interval=1.0,
    simulated="a test",
    masked=False,
    root=True,
    bindings="13",
)


class RecordedPoll:
    """A recorder in front of `pynvml.nvmlLib`, and a recorded poll."""

    def __init__(self, simulation: SimulatedNvml | Replayed, descriptor: int) -> None:
        self.simulation = simulation
        self._descriptor = descriptor
        self._notes = CallLog(descriptor)
        self.recorder = CallRecorder(pynvml.nvmlLib, self._notes, lambda: simulation.now)
        _put(self.recorder)
        self._look_around()
        self.poll = poll_of(simulation)
        self.snapshots: list[Snapshot] = []

    def survey(self) -> None:
        bound = sorted(bus_id for bus_id, driver in self.simulation.node.pci_functions().items() if driver == "nvidia")
        survey(self.poll.library, self.recorder, self.poll.status.driver or "", bound)

    def polls(self, count: int) -> None:
        """Poll all tiers, one second apart."""
        for _ in range(count):
            self._look_around()
            self.snapshots.append(self.poll.poll_later(all_tiers=True))
            self.poll.node.events.take()

    def edit(self, scenario: str) -> None:
        assert isinstance(self.simulation, SimulatedNvml)
        self.simulation.edit(scenario)

    def _look_around(self) -> None:
        node = self.simulation.node
        self._notes.write(BUS, self.simulation.now, node.pci_functions())
        self._notes.write(UUIDS, self.simulation.now, node.uuids())

    def capture(self, secret: bytes | None = None) -> Capture:
        builder = Builder(Mask(secret), BEGAN)
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        with os.fdopen(os.dup(self._descriptor), "rb") as lines:
            for line in lines:
                builder.take(line)
        return builder.capture(replace(HEADER, masked=secret is not None))


class Replayed:
    """A replayed host and its time, with the attributes of a Simulation."""

    def __init__(self, capture: Capture) -> None:
        self.now = BEGAN
        self.node = ReplayedNode(Replay(capture, BEGAN, lambda: self.now), Trace(None))


@contextmanager
def recording(profile: str, scenario: Path | None = None, text: str = "") -> Iterator[RecordedPoll]:
    with simulated_node(profile, scenario, text=text, now=BEGAN, init=False) as simulation, record(simulation) as one:
        yield one


@contextmanager
def record(simulation: SimulatedNvml | Replayed) -> Iterator[RecordedPoll]:
    """Record the library behind pynvml."""
    descriptor, before = os.memfd_create("notes"), pynvml.nvmlLib
    try:
        yield RecordedPoll(simulation, descriptor)
    finally:
        _put(before)
        os.close(descriptor)


@contextmanager
def replay_capture(capture: Capture) -> Iterator[Replayed]:
    """Replay a recording behind pynvml from its start."""
    one, before = Replayed(capture), pynvml.nvmlLib
    _put(one.node.library)
    try:
        yield one
    finally:
        _put(before)


def poll_of(simulation: SimulatedNvml | Replayed) -> Poll:
    return Poll(cast("SimulatedNvml", simulation), (), Extent(), math.inf)


def write_and_read(capture: Capture, folder: Path) -> Capture:
    """Return the recording after a write to a file and a read."""
    path = folder / "node.capture"
    captures.write(capture, path)
    return captures.read(path)


def still(snapshots: Sequence[Snapshot]) -> list[Snapshot]:
    """Return the snapshots without values that depend on the clock."""
    return [
        replace(
            snapshot,
            ended_at=0.0,
            wall=0.0,
            durations={},
            gpus=tuple(replace(gpu, watched=0.0, increments={}, pids_at=None, slow_at=None) for gpu in snapshot.gpus),
        )
        for snapshot in snapshots
    ]


def _put(library: object) -> None:
    pynvml._nvmlGetFunctionPointer_cache.clear()
    pynvml.nvmlLib = library
