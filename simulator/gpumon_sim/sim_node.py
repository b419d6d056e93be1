"""The simulated driver: initialisation, handles, and the steps that all calls share before they are answered."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import count

from gpumon_sim.arrivals import MIG_CHANGED, Message, ScenarioXid, SimEventSet, arrival
from gpumon_sim.board import Profile
from gpumon_sim.codes import Code, Refusal
from gpumon_sim.effects import SimCall
from gpumon_sim.exports import Version
from gpumon_sim.gpm import GpmSample
from gpumon_sim.gpu_states import GpuStates, is_unresponsive
from gpumon_sim.mig import WHOLE_GPU, devices
from gpumon_sim.nvml_client import NvmlClient
from gpumon_sim.scenario import Scenario, ScenarioFile
from gpumon_sim.sim_gpu import Identity, SimGpu

_HANDLES = 0x7E5A_0000_0000
"""First handle. It needs more than 32 bits, so that a handle is invalid if a client truncates it to a C int."""


class SimNode(NvmlClient[SimEventSet, GpmSample]):
    """The simulated driver of a node in one process, with that process's handles, event sets and GPM samples.

    Processes with the same inputs get the same answers at the same time. Exceptions: a process delivers Xids
    without a time and MIG changes only if they are added while it runs, and counts thermal slowdown since its start.
    `epoch` is the start of the simulation on `clock`.
    """

    def __init__(self, profile: Profile, file: ScenarioFile, epoch: float, clock: Callable[[], float]) -> None:
        super().__init__(epoch, clock)
        self.profile = profile
        self.driver: Version = version(file.current.driver)
        """Driver version of the loaded library. The scenario may change the kernel module's version later."""
        self._file = file
        self._lock = threading.Lock()
        self._generation = 0
        self.gpus = GpuStates(profile, epoch, self.scenario, self.time)
        self._arrivals: list[Message] = []
        self._serials = count()

    # The scenario

    def scenario(self) -> Scenario:
        """Return the active scenario. Read the scenario file again if it changed.

        If the new content adds an Xid without a time, or changes a MIG layout, that event occurs at the present time.
        """
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
            self._arrivals += [arrival(xid, now, gpu, next(self._serials)) for xid in (new - old).elements()]
            if before.layouts[gpu] != after.layouts[gpu]:
                self._arrivals.append(Message(now, gpu, MIG_CHANGED, 0, WHOLE_GPU, WHOLE_GPU, next(self._serials)))

    def arrivals(self, gpu: int) -> list[Message]:
        """Return the events of a GPU that have occurred so far, except the Xids of storms."""
        planned: Counter[ScenarioXid] = Counter()
        for xid in self.scenario().xids(gpu):
            if xid.rate is None and xid.at is not None and xid.at <= self.time():
                planned[xid] += 1
        due = [arrival(xid, xid.at or 0.0, gpu, -1 - n) for xid, times in planned.items() for n in range(times)]
        return due + [message for message in self._arrivals if message.gpu == gpu]

    def storms(self, gpu: int) -> list[ScenarioXid]:
        """Return the Xid storms of a GPU, which are Xids that the scenario repeats at a rate."""
        return [xid for xid in self.scenario().xids(gpu) if xid.rate is not None]

    # Initialisation

    def initialise(self, *, may_be_empty: bool) -> None:
        if not may_be_empty and not self.gpus.counted_gpus():
            raise Refusal(Code.GPU_NOT_FOUND)
        self._users += 1
        if self._users == 1:
            self._generation += 1

    # Calls

    def enter(self, function: str) -> None:
        """Begin a call without a device argument. Raise Refusal if NVML is not initialised or `gate` fails the call."""
        self.need_initialised()
        self.gate(function)

    def gate(self, function: str, gpu: int | None = None) -> None:
        """Delay, hang, fail or crash a call as the scenario demands. Raise Refusal if the call fails.

        All calls except nvmlShutdown also fail if the scenario's driver version differs from the loaded library's.
        """
        scenario = self.scenario()
        rows = scenario.rows(gpu)
        if rows:
            call = SimCall(function, lambda: self.scenario().hanging(gpu))
            for fault, value in rows:
                code = fault.refuse(value, call) if fault.refuse else None
                if code:
                    raise Refusal(code)
            scenario = self.scenario()
        if version(scenario.driver) != self.driver and function != "nvmlShutdown":
            starts = function.startswith("nvmlInit")
            raise Refusal(Code.LIB_RM_VERSION_MISMATCH if starts else Code.UNKNOWN)

    def device(self, function: str, handle: int | None, *, parts: bool = False) -> SimGpu:
        """Begin an NVML call of `function` by calling `gate`. Return the GPU or MIG device that `handle` addresses.

        Raise Refusal if NVML is not initialised, the handle is invalid, the scenario fails the call, or the GPU is lost
        or not listed. If `parts` is false, handles of MIG devices are invalid.
        """
        self.need_initialised()
        identity, place = self._identity_of(handle)
        self.gate(function, identity.number)
        state = self.gpus.state(identity.number)
        if is_unresponsive(state):
            raise Refusal(Code.GPU_IS_LOST)
        if not place:
            return SimGpu(self.profile, identity, state, self.driver)
        there = devices(state.mig)
        if not parts or place > len(there):
            raise Refusal(Code.INVALID_ARGUMENT)
        return SimGpu(self.profile, identity, state, self.driver, there[place - 1])

    def look_up(self, function: str, gpu: int) -> int:
        """Return a GPU's handle as the result of the lookup function `function`. Raise Refusal if the lookup fails."""
        self.gate(function, gpu)
        state = self.gpus.state(gpu)
        if state.lost:
            raise Refusal(Code.GPU_IS_LOST)
        if state.lookup_code:
            raise Refusal(state.lookup_code)
        return self.handle(gpu)

    def handle(self, gpu: int, part: int | None = None) -> int:
        """Return the handle of a GPU or, if `part` is an index, of the MIG device at this index on the GPU.

        After a change of the MIG layout, the same handle may address another MIG device.
        """
        return _HANDLES | self._generation << 16 | gpu << 8 | (0 if part is None else part + 1)

    def _identity_of(self, handle: int | None) -> tuple[Identity, int]:
        """Return the identity of a handle's GPU, and 0 for the whole GPU or the index of the MIG device plus one.

        Raise Refusal if the handle is invalid, as are those from before the last initialisation.
        """
        rest, place = divmod((handle or 0) ^ _HANDLES, 1 << 8)
        generation, gpu = divmod(rest, 1 << 8)
        if generation != self._generation or gpu >= len(self.profile.bus_ids):
            raise Refusal(Code.INVALID_ARGUMENT)
        return self.scenario().identities[gpu], place


@cache
def version(driver: str) -> Version:
    return tuple(int(part) for part in driver.split("."))
