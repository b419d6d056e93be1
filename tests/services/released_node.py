"""A simulated node with all that a release concerns: real samplers, the probe, the marker file, the Report."""

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
from agents import alive, descendants, unreaped
from loops import turn_until

from gpumon.clock import boot_clock
from gpumon.model.gpu_state import GpuState
from gpumon.model.orders import SamplerOrders, Simulation
from gpumon.model.release import NODE, Answer
from gpumon.model.snapshot import ChildMessage, DriverStatus, PciBus, Snapshot
from gpumon.probe.core.probes import PROBES
from gpumon.probe.core.result import ProbeResult
from gpumon.probe.runner.run_record import RunRecord
from gpumon.probe.runner.runs import ProbeRuns
from gpumon.probe.runner.settings import ProbeSettings
from gpumon.services.releases import Releasing
from gpumon.state.messages import Message, StoredState, Tick, VerdictTransitions
from gpumon.state.monitor import Monitor
from gpumon.state.report import Report
from gpumon.state.settings import ReducerSettings
from gpumon.supervisor.deadlines import SAMPLER_DEADLINES, SamplerDeadlines
from gpumon.supervisor.loop import Loop
from gpumon.supervisor.sampler_supervisor import SamplerSupervisor

EVERY = set(range(8))
RANK = "import sys; sys.stdin.read()\n"
"""A rank that does nothing until its input closes."""


class ReleasedNode:
    """Begins with a first complete poll; `stop` ends every child."""

    def __init__(self, folder: Path, *, most: float = 60.0, deadlines: SamplerDeadlines = SAMPLER_DEADLINES) -> None:
        self.folder = folder
        self._before = unreaped()
        self.scenario, self.marker, self.done = (folder / one for one in ("scenario.yml", "release", "release.done"))
        self.loop = Loop()
        self.reports: list[Report] = []
        self.kept: list[ProbeResult] = []
        self.trace = folder / "trace"
        self.simulate({})
        simulation = Simulation(
            profile="h100x8", epoch=boot_clock(), scenario=str(self.scenario), trace=str(self.trace)
        )
        self.monitor = Monitor(Report(started=time.time(), simulated="h100x8"), ReducerSettings())
        self.samplers = SamplerSupervisor(
            self.loop,
            lambda page: SamplerOrders(page=page, parent=os.getpid(), simulation=simulation, log_level="error"),
            on_message=self._message,
            on_state=self.take,
            deadlines=deadlines,
        )
        worker = folder / "rank.py"
        worker.write_text(RANK, encoding="ascii")
        self.probing = ProbeRuns(
            self.loop,
            replace(PROBES["allreduce"], worker=worker),
            ProbeSettings(python=sys.executable, deadline=60.0),
            latest=lambda: self.monitor.latest,
            tell=self.take,
            keep=self.kept.append,
            watch=self.samplers.watch,
            record=RunRecord(folder / "run.json"),
        )
        self.most = most
        self.releasing = self.another()

    def another(self) -> Releasing:
        """As the agent makes one at its start: knowing no more than what is on record."""
        return Releasing(
            self.loop,
            most=self.most,
            marker=self.marker,
            record=self.folder / "release.json",
            samplers=self.samplers,
            probing=self.probing,
            latest=lambda: self.monitor.latest,
            tell=self.take,
        )

    def start(self) -> ReleasedNode:
        self.releasing.start()
        self.samplers.start()
        self.take(StoredState())
        self.loop.every(1.0, self._tick)
        return self

    def _tick(self) -> None:
        """Time passes, and what is due is so at once: there is no store."""
        self.take(Tick())
        self.take(VerdictTransitions(transitions=self.report.health.due))

    def stop(self) -> None:
        self.releasing.stop()
        self.probing.stop()
        self.samplers.stop()
        self.until(lambda: not self.samplers.running and not self.probing.running and unreaped() <= self._before)

    # What a test does

    def simulate(self, gpus: Mapping[Any, Any], **node: object) -> None:
        written = self.scenario.with_suffix(".new")
        written.write_text(yaml.safe_dump({"idle": True, "gpus": dict(gpus), **node}), encoding="ascii")
        written.rename(self.scenario)

    def suffer(self, **node: object) -> None:
        """The same of the whole node, and wait until the sampler has read it: a temperature tells."""
        self.simulate({0: {"set": {"temperature": 77}}}, **node)
        self.until(lambda: self.gpu(0).gpu.temperature_celsius == 77)

    def release(self, seconds: float, bus_id: str = NODE, by: str = "api") -> Answer:
        """Ask, and wait for the answer."""
        return self.answered(self.releasing.request(bus_id, seconds, by))

    def answered(self, future: Future[Answer]) -> Answer:
        self.until(future.done, 30.0)
        return future.result()

    def until(self, done: Callable[[], object], seconds: float = 60.0) -> None:
        turn_until(self.loop, lambda: bool(done()), seconds)

    # What is so

    def samplers_now(self) -> set[int]:
        """Pids of living samplers and trials."""
        found = set()
        for pid in alive(descendants(os.getpid())):
            try:
                if b"gpumon.collectors.sampler" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.add(pid)
            except OSError:  # ended meanwhile
                continue
        return found

    def calls(self, function: str) -> int:
        """How often samplers have called this, as far as is written."""
        files = self.folder.glob(f"{self.trace.name}-*.json")
        return sum(json.loads(file.read_text())["calls"].get(function, 0) for file in files)

    @property
    def report(self) -> Report:
        return self.monitor.latest

    def gpu(self, index: int) -> GpuState:
        return next(state for state in self.report.gpus if state.index == index)

    def up(self) -> set[int]:
        """GPUs that answer."""
        return {state.index for state in self.report.gpus if state.gpu.up == 1}

    def take(self, arrival: Message) -> None:
        self.monitor.take(arrival)
        self.reports.append(self.monitor.latest)

    def _message(self, message: ChildMessage) -> None:
        if isinstance(message, (Snapshot, DriverStatus, PciBus)):
            self.take(message)
