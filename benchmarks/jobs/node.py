"""A simulated node whose jobs go through `reduce`, without NVML, child processes and store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from gpumon_sim.board import Profile
from gpumon_sim.gpm import GpmSample, value
from gpumon_sim.gpu_states import GpuStates
from gpumon_sim.infiniband import SimulatedTree
from gpumon_sim.observe import observe
from gpumon_sim.physics import Course
from gpumon_sim.quantities import State
from gpumon_sim.scenario import ScenarioFile

from gpumon.collectors.host.owners import OwnerReader
from gpumon.collectors.host.reader import Trees, Turn
from gpumon.health.policy import Policy
from gpumon.health.sample_windows import SampleHistory
from gpumon.health.table import CHECKS
from gpumon.health.verdict import Verdict, VerdictChange
from gpumon.model.allocation import Claim
from gpumon.model.frame import Frame
from gpumon.model.gpu import Gpu
from gpumon.model.instant import Now
from gpumon.model.orders import HostOrders
from gpumon.model.snapshot import DriverStatus, GpuReading, HostSnapshot, PciBus, ProcessReadings, Snapshot
from gpumon.state.messages import Message, StoredState, Tick, VerdictTransitions
from gpumon.state.reduce import reduce
from gpumon.state.report import Report
from gpumon.state.section import ReducerSettings

STALLED = "job_stalled"
TICK, OWNERS, SLOW = 5, 10, 15
"""Seconds between evaluations, turns of the reader of owners, and reads of the NVLink counters."""
_BOOTED = 1.8e9


class JobNode:
    """A node in simulated time. `claims`: the jobs that a scheduler's prolog names; None if it has no prolog."""

    def __init__(self, profile: Profile, scenario: Path, claims: tuple[Claim, ...] | None) -> None:
        file = ScenarioFile(scenario, profile)
        tree = SimulatedTree(profile, file, 0.0, lambda: self.now)
        self.now = 0.0
        self._profile, self._scenario, self._claims = profile, file.current, claims
        self._states = GpuStates(profile, 0.0, lambda: file.current, lambda: self.now)
        self._owners, self._trees = OwnerReader(), Trees(tree, tree, tree)
        others = frozenset(check.name for check in CHECKS) - {STALLED}
        names = frozenset({"slurm_job_id"})
        self._settings = ReducerSettings(interval=TICK, owner_names=names, policy=Policy(disabled=others))
        self._report = replace(Report(started=0.0), samples=SampleHistory(windows={}))
        self._take(StoredState())
        self._take(PciBus(functions=dict.fromkeys(profile.bus_ids, "nvidia")))
        self._take(DriverStatus(up=True, driver=profile.driver))

    def raised(self, seconds: float) -> Iterator[tuple[float, Verdict]]:
        """Let this time pass, and yield each verdict that is raised, with its time."""
        while self.now < seconds:
            self._poll()
            self._take(Tick())
            due = self._report.health.due
            self._take(VerdictTransitions(transitions=due))
            yield from ((self.now, each.verdict) for each in due if each.change is VerdictChange.RAISED)

    def _take(self, message: Message) -> None:
        self._report = reduce(self._report, message, Now(self.now, _BOOTED + self.now, self.now), self._settings)

    def _poll(self) -> None:
        self.now += TICK
        readings = tuple(map(self._reading, range(len(self._profile.bus_ids))))
        wall, present = _BOOTED + self.now, self._profile.bus_ids
        self._take(Snapshot(ended_at=self.now, wall=wall, durations={}, gpus=readings, present=present))
        if self.now % OWNERS == 0:
            pids = tuple(str(pid) for reading in readings for pid in reading.pids or ())
            owners = self._owners(Turn("owners", self._trees, HostOrders(), self.now, pids=pids))
            found: dict[str, Frame] = {
                "owners": replace(owners, mapped=self._claims),
                "processes": ProcessReadings(contained=False),
            }
            self._take(HostSnapshot(ended_at=self.now, values=found))

    def _reading(self, number: int) -> GpuReading:
        """Return the reading of a GPU: the metrics by which a job is judged, as the sampler reads them."""
        course = self._states.course(number)
        state = observe(self._profile, number, course, self.now)
        pids = tuple(process.pid for process in state.processes)
        dram, tensor = self._active(number, course, state)
        moved = None if state.nvlink_received is None else 1024.0 * state.nvlink_received * len(state.links)
        gpu = Gpu(
            name=self._profile.board.product,
            utilization_ratio=(state.utilization or 0.0) / 100,
            memory_utilization_ratio=(state.memory_utilization or 0.0) / 100,
            power_watts=state.power,
            power_limit_watts=state.power_limit,
            dram_active_ratio=dram,
            tensor_active_ratio=tensor,
            processes=float(len(pids)),
            nvlink_receive_bytes_total=moved,
            nvlink_transmit_bytes_total=moved,
        )
        identity = self._scenario.identities[number]
        return GpuReading(
            bus_id=identity.bus_id,
            uuid=identity.uuid,
            index=number,
            gpu=gpu,
            pids=pids,
            pids_at=self.now,
            slow_at=self.now // SLOW * SLOW,
            watched=TICK,
        )

    def _active(self, number: int, course: Course, state: State) -> tuple[float | None, float | None]:
        """Return the use of memory and tensor cores over the last second, as ratios; None if the product has no GPM."""
        if not self._profile.board.gpm:
            return None, None
        then = course.at(self.now - 1).point
        before = replace(state, load_seconds=then.load_seconds, spin_seconds=then.spin_seconds)
        pair = GpmSample(number, None, self.now - 1, before), GpmSample(number, None, self.now, state)
        dram, tensor = ((value(name, *pair) or 0.0) / 100 for name in ("dram_bw_util", "any_tensor_util"))
        return dram, tensor
