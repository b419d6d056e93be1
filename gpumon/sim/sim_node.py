"""The simulated driver: initialisation, handles, and the path from a call to its answer."""

from __future__ import annotations

import hashlib
import math
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache

from gpumon.sim.arrivals import MIG_CHANGED, Message, ScenarioXid, SimEventSet, arrival
from gpumon.sim.board import Board, Profile
from gpumon.sim.codes import Code, Refusal
from gpumon.sim.effects import SimCall
from gpumon.sim.exports import Version
from gpumon.sim.gpm import GpmSample
from gpumon.sim.mig import WHOLE_GPU, devices
from gpumon.sim.observe import observe, settle
from gpumon.sim.physics import Body, Course, Workload
from gpumon.sim.quantities import State
from gpumon.sim.scenario import Scenario, ScenarioFile
from gpumon.sim.sim_gpu import Identity, SimGpu

SAMPLES = 10
"""Samples that the driver takes a second. Data-centre GPUs are not faster, however often they are read."""
_HANDLES = 0x7E5A_0000_0000
"""First handle. Above 32 bits, so that a handle passed as an int is detected."""


POWER_BEFORE = 1000.0
"""Energy in watts since boot before the epoch, so that an agent with a later epoch sees no counter reset."""


class SimNode:
    """One process's view of the node, equal in every process with the same inputs."""

    def __init__(self, profile: Profile, file: ScenarioFile, epoch: float, clock: Callable[[], float]) -> None:
        self.profile = profile
        self.driver: Version = version(file.current.driver)
        """Driver version of the loaded library; the kernel module may have another."""
        self._file = file
        self._epoch = epoch
        self._clock = clock
        self._lock = threading.Lock()
        self._users = 0
        self._generation = 0
        self._states: dict[int, tuple[float, Scenario, State]] = {}
        self._courses: dict[int, tuple[Workload, Course]] = {}
        self._arrivals: list[Message] = []
        self._serial = 0
        self.event_sets: dict[int, SimEventSet] = {}
        self.samples: dict[int, GpmSample | None] = {}
        """Event sets and GPM samples, by pointer. They end with the last user."""

    # Time and the scenario

    def time(self) -> float:
        """Return seconds since the epoch."""
        return self._clock() - self._epoch

    def tick(self) -> float:
        """Return the time of the driver's last sample."""
        return max(0, math.floor(self.time() * SAMPLES + 1e-6)) / SAMPLES

    def scenario(self) -> Scenario:
        """Return the active scenario. Events that a newer file adds happen now."""
        if not self._file.due():
            return self._file.current
        with self._lock:
            before = self._file.current
            if self._file.refresh():
                self._note_events(before, self._file.current)
            return self._file.current

    def _note_events(self, before: Scenario, after: Scenario) -> None:
        now = self.time()
        for gpu in range(len(after.gpus)):
            old, new = (Counter(x for x in s.xids(gpu) if x.at is None and x.rate is None) for s in (before, after))
            self._arrivals += [arrival(xid, now, gpu, self.serial()) for xid in (new - old).elements()]
            if before.layouts[gpu] != after.layouts[gpu]:
                self._arrivals.append(Message(now, gpu, MIG_CHANGED, 0, WHOLE_GPU, WHOLE_GPU, self.serial()))

    def arrivals(self, gpu: int) -> list[Message]:
        """Return the events of a GPU that have happened, except storms."""
        planned: Counter[ScenarioXid] = Counter()
        for xid in self.scenario().xids(gpu):
            if xid.rate is None and xid.at is not None and xid.at <= self.time():
                planned[xid] += 1
        due = [arrival(xid, xid.at or 0.0, gpu, -1 - n) for xid, times in planned.items() for n in range(times)]
        return due + [one for one in self._arrivals if one.gpu == gpu]

    def storms(self, gpu: int) -> list[ScenarioXid]:
        """Return the Xid storms of a GPU."""
        return [xid for xid in self.scenario().xids(gpu) if xid.rate is not None]

    # Initialisation

    @property
    def initialised(self) -> bool:
        return self._users > 0

    def initialise(self, *, may_be_empty: bool) -> None:
        if not may_be_empty and not self.counted():
            raise Refusal(Code.GPU_NOT_FOUND)
        self._users += 1
        if self._users == 1:
            self._generation += 1

    def shut_down(self) -> None:
        """Invalidate handles, event sets and samples with the last user."""
        self._users -= 1
        if not self._users:
            self.event_sets.clear()
            self.samples.clear()

    def need_initialised(self) -> None:
        if not self.initialised:
            raise Refusal(Code.UNINITIALIZED)

    def serial(self) -> int:
        """Return a number that was not used before."""
        self._serial += 1
        return self._serial

    # Calls

    def enter(self, function: str) -> None:
        """Enter a call without a device."""
        self.need_initialised()
        self.gate(function)

    def gate(self, function: str, gpu: int | None = None) -> None:
        """Let the scenario delay, hang, fail or crash the call. An outdated library returns its own error first."""
        scenario = self.scenario()
        rows = scenario.rows(gpu)
        if rows:
            call = SimCall(function, lambda: self.scenario().rows(gpu))
            for fault, value in rows:
                code = fault.refuse(value, call) if fault.refuse else None
                if code:
                    raise Refusal(code)
            scenario = self.scenario()
        if version(scenario.driver) != self.driver and function != "nvmlShutdown":
            starts = function.startswith("nvmlInit")
            raise Refusal(Code.LIB_RM_VERSION_MISMATCH if starts else Code.UNKNOWN)

    def device(self, function: str, handle: int | None, *, parts: bool = False) -> SimGpu:
        """Return the GPU or MIG device of a handle, if it answers this function."""
        self.need_initialised()
        identity, place = self._identity_of(handle)
        self.gate(function, identity.number)
        state = self.state(identity.number)
        if _gone(state):
            raise Refusal(Code.GPU_IS_LOST)
        if not place:
            return SimGpu(self.profile, identity, state, self.driver)
        there = devices(state.mig)
        if not parts or place > len(there):
            raise Refusal(Code.INVALID_ARGUMENT)
        return SimGpu(self.profile, identity, state, self.driver, there[place - 1])

    def look_up(self, function: str, gpu: int) -> int:
        """Return the handle of a GPU."""
        self.gate(function, gpu)
        state = self.state(gpu)
        if state.lost:
            raise Refusal(Code.GPU_IS_LOST)
        if state.lookup_code:
            raise Refusal(state.lookup_code)
        return self.handle(gpu)

    def handle(self, gpu: int, part: int | None = None) -> int:
        """Return the handle of a GPU or of its MIG device at this index, which may be reused after a layout change."""
        return _HANDLES | self._generation << 16 | gpu << 8 | (0 if part is None else part + 1)

    def _identity_of(self, handle: int | None) -> tuple[Identity, int]:
        """Return the GPU and the MIG device's index plus one, 0 for the whole GPU."""
        rest, place = divmod((handle or 0) ^ _HANDLES, 1 << 8)
        generation, gpu = divmod(rest, 1 << 8)
        if generation != self._generation or gpu >= len(self.profile.bus_ids):
            raise Refusal(Code.INVALID_ARGUMENT)
        return self.scenario().identities[gpu], place

    # GPUs

    def identities(self) -> tuple[Identity, ...]:
        return self.scenario().identities

    def counted(self) -> list[int]:
        """Return the GPUs that NVML counts, in the order of its indexes."""
        return [gpu for gpu in range(len(self.profile.bus_ids)) if self._well(gpu) or _counted(self.state(gpu))]

    def gone(self, gpu: int) -> bool:
        """Return whether the GPU is lost or not visible to NVML."""
        return not self._well(gpu) and _gone(self.state(gpu))

    def _well(self, gpu: int) -> bool:
        """Return whether the scenario does not affect the GPU, so that its state need not be computed."""
        return not self.scenario().gpus[gpu]

    def unloaded(self) -> bool:
        """Return whether the kernel driver is missing."""
        return any(fault.key == "driver" and value != "mismatch" for fault, value in self.scenario().node)

    def state(self, gpu: int) -> State:
        """Return a GPU's state at the latest tick."""
        scenario = self.scenario()
        tick = self.tick()
        known = self._states.get(gpu)
        if known and known[0] == tick and known[1] is scenario:
            return known[2]
        layout = scenario.layouts[gpu]
        observed = observe(self.profile, gpu, self.course(gpu), tick, layout)
        if observed.energy is not None:
            observed = replace(observed, energy=observed.energy + POWER_BEFORE * self._epoch)
        state = self._altered(scenario, gpu, observed, tick)
        self._states[gpu] = tick, scenario, state
        return state

    def seen_at(self, gpu: int) -> float:
        """Tick of the last state returned: the next may have begun since."""
        return self._states[gpu][0]

    def _altered(self, scenario: Scenario, gpu: int, state: State, tick: float) -> State:
        """Apply the scenario. It runs twice, because derived values depend on what is set and may be set themselves."""

        def alter(state: State) -> State:
            for fault, value in scenario.gpus[gpu]:
                state = fault.alter(value, state, tick) if fault.alter else state
            return state

        return alter(settle(self.profile, alter(state)))

    def course(self, gpu: int) -> Course:
        """Return the GPU's state under its workload."""
        scenario = self.scenario()
        workload = scenario.workloads[gpu]
        known = self._courses.get(gpu)
        if known is None or known[0] is not workload:
            known = workload, Course(body(self.profile.board, scenario.identities[gpu]), workload)
            self._courses[gpu] = known
        return known[1]


@cache
def version(driver: str) -> Version:
    return tuple(int(part) for part in driver.split("."))


def _seen(state: State) -> bool:
    """Return whether NVML lists the GPU."""
    return state.on_bus and state.bound == "nvidia"


def _counted(state: State) -> bool:
    return state.counted and _seen(state)


def _gone(state: State) -> bool:
    return state.lost or not _seen(state)


def body(board: Board, identity: Identity) -> Body:
    """Return small differences between boards: up to 3 % in power, 3 degrees in cooling."""
    chance = hashlib.sha256(identity.uuid.encode()).digest()
    draw, cooling = ((byte - 127.5) / 127.5 for byte in chance[:2])
    rise = (board.temperature_full - board.temperature_idle) / (board.power_limit - board.power_idle)
    return Body(
        idle=board.power_idle * (1 + 0.03 * draw),
        full=board.power_full * (1 + 0.03 * draw),
        limit=board.power_limit,
        cool=board.temperature_idle + 3 * cooling,
        per_watt=rise,
    )
