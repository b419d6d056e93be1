"""The simulated driver: initialisation, handles, and what stands between a call and its answer."""

from __future__ import annotations

import hashlib
import math
import threading
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from gpumon.sim.codes import Code, Refusal
from gpumon.sim.device import Device, Identity
from gpumon.sim.faults import Call
from gpumon.sim.physics import Body, Course, Workload
from gpumon.sim.profiles import Profile
from gpumon.sim.scenario import Scenario, ScenarioFile
from gpumon.sim.state import State, observe, settle

if TYPE_CHECKING:
    from gpumon.sim.events import EventSet

SAMPLES = 10
"""Samples that the driver takes in a second: data-centre GPUs are no quicker, however often they are asked."""
_HANDLES = 0x7E5A_0000_0000
"""Handles lie beyond 32 bits, so that one passed as an int shows."""


class Arrival(NamedTuple):
    """An Xid, when it happened (seconds after the epoch), and which of those that are alike it is."""

    time: float
    gpu: int
    xid: int
    number: int


class Node:
    """One process's view of the node. Another process that has the same inputs sees the same."""

    def __init__(self, profile: Profile, file: ScenarioFile, epoch: float, clock: Callable[[], float]) -> None:
        self.profile = profile
        self._file = file
        self._epoch = epoch
        self._clock = clock
        self._lock = threading.Lock()
        self._users = 0
        self._generation = 0
        self._states: dict[int, tuple[float, Scenario, State]] = {}
        self._courses: dict[int, tuple[Workload, Course]] = {}
        self._arrivals: list[Arrival] = []
        self._serial = 0
        self.event_sets: dict[int, EventSet] = {}
        """By pointer."""

    # Time and the scenario

    def time(self) -> float:
        """Seconds since the epoch."""
        return self._clock() - self._epoch

    def scenario(self) -> Scenario:
        """What is in force; Xids that a newer file has and the one before had not arrive now."""
        with self._lock:
            before = self._file.current
            if self._file.refresh():
                self._note_xids(before, self._file.current)
            return self._file.current

    def _note_xids(self, before: Scenario, after: Scenario) -> None:
        for gpu in range(len(after.gpus)):
            old, new = (Counter(x.xid for x in s.xids(gpu) if x.at is None) for s in (before, after))
            for xid in (new - old).elements():
                self._arrivals.append(Arrival(self.time(), gpu, xid, len(self._arrivals)))

    def arrivals(self, gpu: int) -> list[Arrival]:
        """The Xids of a GPU that have happened, the first first."""
        due = Counter((x.at, x.xid) for x in self.scenario().xids(gpu) if x.at is not None and x.at <= self.time())
        planned = [Arrival(at, gpu, xid, -1 - n) for (at, xid), times in due.items() for n in range(times)]
        return sorted(planned + [arrival for arrival in self._arrivals if arrival.gpu == gpu])

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
        """Handles and event sets die with the last user."""
        self._users -= 1
        if not self._users:
            self.event_sets.clear()

    def need_initialised(self) -> None:
        if not self.initialised:
            raise Refusal(Code.UNINITIALIZED)

    def serial(self) -> int:
        """Another number each time."""
        self._serial += 1
        return self._serial

    # Calls

    def enter(self, function: str) -> None:
        """A call that concerns no single GPU."""
        self.need_initialised()
        self.gate(function)

    def gate(self, function: str, gpu: int | None = None) -> None:
        """Let the scenario delay, hang, fail or crash the call."""
        call = Call(function, lambda: self.scenario().rows(gpu))
        for fault, value in self.scenario().rows(gpu):
            code = fault.refuse(value, call) if fault.refuse else None
            if code:
                raise Refusal(code)

    def device(self, function: str, handle: int | None) -> Device:
        """The GPU that a handle stands for, if it answers this function."""
        self.need_initialised()
        identity = self._identity_of(handle)
        self.gate(function, identity.number)
        if self.gone(identity.number):
            raise Refusal(Code.GPU_IS_LOST)
        return Device(self, self.profile, identity, self.state(identity.number))

    def look_up(self, function: str, gpu: int) -> int:
        """The handle of a GPU."""
        self.gate(function, gpu)
        state = self.state(gpu)
        if state.lost:
            raise Refusal(Code.GPU_IS_LOST)
        if state.lookup_code:
            raise Refusal(state.lookup_code)
        return self.handle(gpu)

    def handle(self, gpu: int) -> int:
        return _HANDLES | self._generation << 16 | gpu << 8

    def _identity_of(self, handle: int | None) -> Identity:
        generation, gpu = divmod(((handle or 0) ^ _HANDLES) >> 8, 1 << 8)
        if generation != self._generation or gpu >= len(self.profile.bus_ids) or handle != self.handle(gpu):
            raise Refusal(Code.INVALID_ARGUMENT)
        return self.scenario().identities[gpu]

    # GPUs

    def driver(self) -> tuple[int, ...]:
        """Version of the driver."""
        return tuple(int(part) for part in self._file.current.driver.split("."))

    def identities(self) -> tuple[Identity, ...]:
        return self.scenario().identities

    def counted(self) -> list[int]:
        """The GPUs that NVML counts, in the order of its indices."""
        states = [(gpu, self.state(gpu)) for gpu in range(len(self.profile.bus_ids))]
        return [gpu for gpu, state in states if state.counted and _seen(state)]

    def gone(self, gpu: int) -> bool:
        """Lost, or no longer NVML's."""
        state = self.state(gpu)
        return state.lost or not _seen(state)

    def unloaded(self) -> bool:
        """There is no kernel driver."""
        return any(fault.key == "driver" and value != "mismatch" for fault, value in self.scenario().node)

    def state(self, gpu: int) -> State:
        """A GPU at the latest tick."""
        scenario = self.scenario()
        tick = max(0, math.floor(self.time() * SAMPLES + 1e-6)) / SAMPLES
        known = self._states.get(gpu)
        if known and known[0] == tick and known[1] is scenario:
            return known[2]
        state = self._altered(scenario, gpu, observe(self.profile, gpu, self._course(scenario, gpu), tick), tick)
        self._states[gpu] = tick, scenario, state
        return state

    def _altered(self, scenario: Scenario, gpu: int, state: State, tick: float) -> State:
        """What is set decides what follows from it; and what follows may itself be set, hence the second time."""

        def alter(state: State) -> State:
            for fault, value in scenario.gpus[gpu]:
                state = fault.alter(value, state, tick) if fault.alter else state
            return state

        return alter(settle(self.profile, alter(state)))

    def _course(self, scenario: Scenario, gpu: int) -> Course:
        workload = scenario.workloads[gpu]
        known = self._courses.get(gpu)
        if known is None or known[0] is not workload:
            known = workload, Course(body(self.profile, scenario.identities[gpu]), workload)
            self._courses[gpu] = known
        return known[1]


def _seen(state: State) -> bool:
    """NVML has the GPU."""
    return state.on_bus and state.bound == "nvidia"


def body(profile: Profile, identity: Identity) -> Body:
    """No two boards are quite alike: up to 3 % in power, 3 degrees in cooling."""
    chance = hashlib.sha256(identity.uuid.encode()).digest()
    draw, cooling = ((byte - 127.5) / 127.5 for byte in chance[:2])
    rise = (profile.temperature_full - profile.temperature_idle) / (profile.power_limit - profile.power_idle)
    return Body(
        idle=profile.power_idle * (1 + 0.03 * draw),
        full=profile.power_full * (1 + 0.03 * draw),
        limit=profile.power_limit,
        cool=profile.temperature_idle + 3 * cooling,
        per_watt=rise,
    )
