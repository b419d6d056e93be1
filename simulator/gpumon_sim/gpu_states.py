"""Computes the state of each GPU of a simulated node from its workload, the time and the active scenario."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gpumon_sim.board import Board, Profile
from gpumon_sim.observe import add_derived, observe
from gpumon_sim.physics import Body, Course, Workload
from gpumon_sim.quantities import EVENT_HW_THERMAL, EVENT_SW_THERMAL, State
from gpumon_sim.scenario import Scenario
from gpumon_sim.sim_gpu import Identity

SAMPLES = 10
"""Samples per second that the driver takes of a GPU. Reads between two samples return the same values."""
POWER_BEFORE = 1000.0
"""Power in watts that the energy counter assumes from boot to the start of the simulation, so that the counter is
higher, not reset, after the simulation is restarted.
"""
_THERMAL = {"sw_thermal_seconds": EVENT_SW_THERMAL, "hw_thermal_seconds": EVENT_HW_THERMAL}
"""Bit of the clock event by the quantity that counts the seconds in which it was active."""


class GpuStates:
    """The states of a simulated node's GPUs.

    A state is computed when it is read, and cached until the driver's next sample or a change of the scenario. `epoch`
    is the start of the simulation on the boot clock, and `time` returns the seconds since then.
    """

    def __init__(
        self, profile: Profile, epoch: float, scenario: Callable[[], Scenario], time: Callable[[], float]
    ) -> None:
        self._profile = profile
        self._epoch = epoch
        self._scenario = scenario
        self._time = time
        self._states: dict[int, tuple[float, Scenario, State]] = {}
        self._courses: dict[int, tuple[Workload, Identity, Course]] = {}

    def tick(self) -> float:
        """Return the time of the driver's latest sample, in seconds since the simulation began."""
        return max(0, math.floor(self._time() * SAMPLES + 1e-6)) / SAMPLES

    def counted_gpus(self) -> list[int]:
        """Return the GPUs that NVML counts, as positions in the profile, in the order of NVML's indexes."""
        return [
            gpu
            for gpu in range(len(self._profile.bus_ids))
            if self._is_unaffected(gpu) or _has_counters(self.state(gpu))
        ]

    def is_gone(self, gpu: int) -> bool:
        """Return True if the GPU is lost or NVML does not list it."""
        return not self._is_unaffected(gpu) and is_unresponsive(self.state(gpu))

    def _is_unaffected(self, gpu: int) -> bool:
        """Return True if the scenario has no settings for the GPU, so that it is listed by NVML and not lost."""
        return not self._scenario().gpus[gpu]

    def state(self, gpu: int) -> State:
        """Return a GPU's state at the driver's latest sample, under the active scenario."""
        scenario = self._scenario()
        tick = self.tick()
        cached = self._states.get(gpu)
        if cached and cached[0] == tick and cached[1] is scenario:
            return cached[2]
        observed = observe(self._profile, gpu, self.course(gpu), tick, scenario.layouts[gpu])
        if observed.energy is not None:
            observed = replace(observed, energy=observed.energy + POWER_BEFORE * self._epoch)
        if cached:
            observed = _with_thermal_seconds(observed, cached[2], tick - cached[0])
        state = self._apply_scenario(scenario, gpu, observed, tick)
        self._states[gpu] = tick, scenario, state
        return state

    def sampled_at(self, gpu: int) -> float:
        """Return the time of a GPU's sample that `state` last returned, in seconds since the simulation began.

        The driver may have taken newer samples.
        """
        return self._states[gpu][0]

    def _apply_scenario(self, scenario: Scenario, gpu: int, state: State, tick: float) -> State:
        """Return the GPU's `state` with the scenario's faults applied and the derived quantities added.

        The faults are applied before the derivation, because derived quantities depend on faults, and again after it,
        because faults can set derived quantities.
        """

        def alter(state: State) -> State:
            for fault, value in scenario.rows(gpu):
                state = fault.alter(value, state, tick) if fault.alter else state
            return state

        return alter(add_derived(self._profile, alter(state)))

    def course(self, gpu: int) -> Course:
        """Return the GPU's power, energy and temperature over time under its workload."""
        scenario = self._scenario()
        workload, identity = scenario.workloads[gpu], scenario.identities[gpu]
        cached = self._courses.get(gpu)
        if cached is None or cached[0] is not workload or cached[1] != identity:
            cached = workload, identity, Course(body(self._profile.board, identity), workload)
            self._courses[gpu] = cached
        return cached[2]


def _with_thermal_seconds(observed: State, before: State, elapsed: float) -> State:
    """Return `observed` with the seconds of thermal slowdown: those in `before`, and `elapsed` if it was active there.

    The scenario decides when a GPU is too hot, so these seconds are counted by each process since its start.
    """
    events = int(before.clock_events or 0)
    seconds: dict[str, Any] = {
        name: (getattr(before, name) or 0.0) + (elapsed if events & bit else 0.0)
        for name, bit in _THERMAL.items()
        if getattr(observed, name) is not None
    }
    return replace(observed, **seconds)


def is_unresponsive(state: State) -> bool:
    """Return True if NVML's calls for a GPU in this state fail, because the GPU is lost or NVML does not list it."""
    return state.lost or not _is_listed(state)


def _has_counters(state: State) -> bool:
    return state.counted and _is_listed(state)


def _is_listed(state: State) -> bool:
    """Return True if NVML lists the GPU, because it is on the PCI bus and bound to the driver `nvidia`."""
    return state.on_bus and state.bound == "nvidia"


def body(board: Board, identity: Identity) -> Body:
    """Return the physical parameters of one GPU: its power, and its temperature as a function of power.

    Idle and full power deviate from those of the product by up to 3 %, the temperature without load by up to 3 degrees,
    depending on the uuid.
    """
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
