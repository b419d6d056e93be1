"""A simulated node for tests of driver releases, with real samplers, probe, marker file and Report."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from agents import alive, descendants, unreaped_children
from loops import turn_until

from gpumon.clock import boot_clock, boot_id
from gpumon.model.frame import Frame
from gpumon.model.gpu_state import GpuState
from gpumon.model.orders import SamplerOrders, Simulation
from gpumon.model.request import RequestResult
from gpumon.model.snapshot import DriverStatus, PciBus, Snapshot
from gpumon.model.time_window import NODE, TimeWindow, WindowKind, WindowRequest, WindowSelection, in_force
from gpumon.probe.core.probes import PROBES
from gpumon.probe.core.result import ProbeResult
from gpumon.probe.core.settings import ProbeSettings
from gpumon.runner.probe_host import ProbeHost
from gpumon.runner.runs import ProbeRuns, RunRecord
from gpumon.services.driver_release import DriverRelease
from gpumon.services.persistence import Persistence
from gpumon.services.release_marker import MarkerWatch
from gpumon.services.time_windows import TimeWindows
from gpumon.state.messages import Message, Tick, VerdictTransitions
from gpumon.state.monitor import Monitor
from gpumon.state.report import Report
from gpumon.state.section import ReducerSettings
from gpumon.store.records import Retention
from gpumon.supervisor.deadlines import Deadlines
from gpumon.supervisor.loop import Loop
from gpumon.supervisor.sampler_supervisor import SAMPLER, SamplerSupervisor

EVERY = set(range(8))
RANK = "import sys; sys.stdin.read()\n"
"""A rank that waits until its input closes."""


class ReleasedNode:
    """A node with the parts of the agent that a release affects; `stop` ends every child."""

    def __init__(self, folder: Path, *, max_seconds: float = 60.0, deadlines: Deadlines = SAMPLER.deadlines) -> None:
        self.folder = folder
        self._before = unreaped_children()
        self.scenario, self.marker, self.done = (folder / name for name in ("scenario.yml", "release", "release.done"))
        self.loop = Loop()
        self.reports: list[Report] = []
        self.results: list[ProbeResult] = []
        self.trace = folder / "trace"
        self.simulate({})
        simulation = Simulation(
            profile="h100x8", epoch=boot_clock(), scenario=str(self.scenario), trace=str(self.trace)
        )
        self.monitor = Monitor(Report(started=time.time(), boot_id=boot_id(), simulated="h100x8"), ReducerSettings())
        self.samplers = SamplerSupervisor(
            self.loop,
            SamplerOrders(simulation=simulation, log_level="error"),
            on_message=self._take_message,
            on_state=self.take,
            program=replace(SAMPLER, deadlines=deadlines),
        )
        worker = folder / "rank.py"
        worker.write_text(RANK, encoding="ascii")
        self.probing = ProbeRuns(
            self.loop,
            {"allreduce": replace(PROBES["allreduce"], worker=worker)},
            ProbeHost(
                self.loop,
                ProbeSettings(python=sys.executable, deadline=60.0),
                lambda: self.monitor.latest,
                self.samplers.watch,
            ),
            publish=self.take,
            store=self.results.append,
            record=RunRecord(folder / "run.json"),
        )
        self.max_seconds = max_seconds
        self._has_store = False
        self.persistence = Persistence(
            self.loop,
            folder / "gpumon.db",
            Retention(),
            publish=self.take,
            latest=lambda: self.monitor.latest,
        )
        self.driver_release = self.make_driver_release()
        self.windows = TimeWindows(
            self.loop,
            self.persistence.writes,
            {WindowKind.RELEASE: self.driver_release},
            max_seconds={WindowKind.RELEASE: max_seconds},
            latest=lambda: self.monitor.latest,
            publish=self.take,
        )

    def make_driver_release(self) -> DriverRelease:
        """Return a new DriverRelease, as the agent creates it at its start."""
        return DriverRelease(
            self.loop,
            MarkerWatch(self.marker, self.max_seconds),
            samplers=self.samplers,
            probing=self.probing,
            latest=lambda: self.monitor.latest,
            publish=self.take,
            store_failed=lambda: False,
        )

    def start(self) -> ReleasedNode:
        self.start_store()
        self.driver_release.start()
        self.loop.every(1.0, self._tick)
        return self

    def start_store(self) -> None:
        self.persistence.start()
        self._has_store = True

    def _tick(self) -> None:
        """Evaluate the checks. Transitions take effect at once, because there is no store."""
        self.take(Tick())
        self.take(VerdictTransitions(transitions=self.report.health.due))

    def stop(self) -> None:
        self.driver_release.stop()
        self.windows.stop()
        self.probing.stop()
        self.samplers.stop()
        self.until(
            lambda: not self.samplers.running and not self.probing.running and unreaped_children() <= self._before
        )
        if self._has_store:
            self.persistence.close()

    # Actions of a test

    def simulate(self, gpus: Mapping[Any, Any], **node: object) -> None:
        written = self.scenario.with_suffix(".new")
        written.write_text(yaml.safe_dump({"idle": True, "gpus": dict(gpus), **node}), encoding="ascii")
        written.rename(self.scenario)

    def simulate_node_faults(self, **node: object) -> None:
        """Simulate these faults of the whole node, and wait until the sampler has read them."""
        self.simulate({0: {"set": {"temperature": 77}}}, **node)
        self.until(lambda: self.gpu(0).gpu.temperature_celsius == 77)

    def request(self, seconds: float, bus_id: str = NODE, by: str = "api") -> Future[RequestResult]:
        return self.windows.start(WindowRequest(kind=WindowKind.RELEASE, seconds=seconds, by=by, bus_id=bus_id))

    def release(self, seconds: float, bus_id: str = NODE, by: str = "api") -> RequestResult:
        """Request a release, and wait for the answer."""
        return self.result_of(self.request(seconds, bus_id, by))

    def end(self, bus_id: str | None = None, by: str = "api") -> RequestResult:
        """End one release, or all, and wait for the answer."""
        return self.result_of(self.windows.end(WindowSelection(kind=WindowKind.RELEASE, bus_id=bus_id, by=by)))

    def releases(self) -> tuple[TimeWindow, ...]:
        return in_force(self.report.windows)

    def result_of(self, future: Future[RequestResult]) -> RequestResult:
        self.until(future.done, 30.0)
        return future.result()

    def until(self, done: Callable[[], object], seconds: float = 60.0) -> None:
        turn_until(self.loop, lambda: bool(done()), seconds)

    # Current state

    def sampler_pids(self) -> set[int]:
        """Return the pids of live samplers and trials."""
        pids = set()
        for pid in alive(descendants(os.getpid())):
            try:
                if b"gpumon.collectors.sampler" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    pids.add(pid)
            except OSError:  # ended meanwhile
                continue
        return pids

    def calls(self, function: str) -> int:
        """Return the number of calls of this function in the written traces of samplers."""
        files = self.folder.glob(f"{self.trace.name}-*.json")
        return sum(json.loads(file.read_text())["calls"].get(function, 0) for file in files)

    @property
    def report(self) -> Report:
        return self.monitor.latest

    def gpu(self, index: int) -> GpuState:
        return next(state for state in self.report.gpus if state.index == index)

    def up(self) -> set[int]:
        """Return the indexes of GPUs that answer."""
        return {state.index for state in self.report.gpus if state.gpu.up == 1}

    def take(self, arrival: Message) -> None:
        self.monitor.take(arrival)
        self.reports.append(self.monitor.latest)

    def _take_message(self, message: Frame) -> None:
        if isinstance(message, (Snapshot, DriverStatus, PciBus)):
            self.take(message)
