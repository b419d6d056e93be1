"""Computes the state of a healthy GPU at a given time from the profile and the GPU's workload."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Any
from zlib import crc32

from gpumon_sim.board import MIB, Clocks, Profile
from gpumon_sim.job_processes import pid_of
from gpumon_sim.mig import Layout, devices
from gpumon_sim.physics import Course, Job, Moment
from gpumon_sim.quantities import (
    EVENT_HW_SLOWDOWN,
    EVENT_HW_THERMAL,
    EVENT_IDLE,
    EVENT_POWER_CAP,
    EVENT_SW_THERMAL,
    LINK_ACTIVE,
    LINK_DOWN,
    QUANTITIES,
    Link,
    Process,
    State,
)

UTILIZATION_HERTZ = 6
"""Number of utilization samples that the driver takes per second."""
CLOCK_STEP = 15
"""Difference in MHz between adjacent core clock frequencies."""
MEMORY_SHARE = 0.6
"""Memory utilization as a share of the load."""
LINK_KIB_PER_SECOND = 6_000_000
"""Traffic of one NVLink, in each direction, under full load."""
PCIE_BYTES_PER_SECOND = 200_000_000
"""PCIe traffic of a GPU, in each direction, under full load."""
MODULE_SHARE = 0.3
"""Additional watts that the CPU of a module draws for each additional watt of the GPU."""
_ZERO = (
    *("ecc_corrected", "ecc_uncorrected", "encoder_utilization", "decoder_utilization", "compute_mode", "pcie_replays"),
    *("sync_boost_seconds", "sw_thermal_seconds", "hw_thermal_seconds", "hw_power_brake_seconds"),
)


def observe(profile: Profile, gpu: int, course: Course, time: float, layout: Layout | None = None) -> State:
    """Return a healthy GPU's state `time` seconds after the simulation began. `layout`: its MIG instances, if any.

    The state lacks the derived quantities, which `add_derived` adds.
    """
    now = course.at(time)
    point, board = now.point, profile.board
    mean = point.energy - course.at(time - 1.0).point.energy if time >= 1.0 else point.power
    processes = _processes(profile, gpu, now, layout)
    busy, moving = utilization(course, gpu, time)
    traffic = point.load_seconds * LINK_KIB_PER_SECOND if board.links else None
    state = replace(
        _constant_state(profile),
        processes=processes,
        mig=layout,
        held_back=now.capped,
        load_seconds=point.load_seconds,
        spin_seconds=point.spin_seconds,
        own_utilization=busy,
        own_load=moving,
        utilization=busy,
        memory_utilization=round(moving * MEMORY_SHARE),
        memory_used=sum(process.memory for process in processes),
        temperature=point.temperature,
        memory_temperature=_memory_temperature(profile, point.temperature),
        power=mean if board.power_mean else point.power,
        power_now=point.power,
        power_average=mean if board.power_mean else None,
        memory_power=None if board.memory_power_idle is None else board.memory_power_idle + 25 * now.phase.load,
        module_power=_module_power(profile, mean),
        energy=point.energy,
        sw_power_cap_seconds=point.capped_seconds,
        performance_state=0 if processes else board.performance_state_idle,
        pcie_generation=board.pcie_generation if processes else board.pcie_generation_idle,
        pcie_transmitted=point.load_seconds * PCIE_BYTES_PER_SECOND,
        pcie_received=point.load_seconds * PCIE_BYTES_PER_SECOND,
        nvlink_transmitted=traffic,
        nvlink_received=traffic,
    )
    return _without(state, _names_beginning_with(*profile.without)) if profile.without else state


def add_derived(profile: Profile, state: State) -> State:
    """Return the state with the derived quantities: thermal margin, clock events, clocks, lifetime ECC counters.

    If MIG is enabled, set the quantities that MIG disables to None.
    """
    board = profile.board
    temperature = state.temperature or 0.0
    capped = state.held_back or (state.power or 0.0) >= (state.power_limit or float("inf"))
    _, slowdown, _, highest = board.thresholds
    events = (
        (0 if state.processes or state.utilization else EVENT_IDLE)
        | (EVENT_POWER_CAP if capped else 0)
        | (EVENT_SW_THERMAL if temperature >= highest else 0)
        | (EVENT_HW_SLOWDOWN | EVENT_HW_THERMAL if temperature >= slowdown else 0)
    )
    graphics, sm, memory, video = _clocks(profile, events)
    complete = replace(
        state,
        margin=None if board.thermal_limits is None else highest - temperature,
        clock_events=events,
        graphics_clock=graphics,
        sm_clock=sm,
        memory_clock=memory,
        video_clock=video,
        ecc_lifetime_corrected_sram=state.ecc_corrected_sram,
        ecc_lifetime_corrected_dram=state.ecc_corrected_dram,
        ecc_lifetime_uncorrected_sram=state.ecc_uncorrected_sram,
        ecc_lifetime_uncorrected_dram=state.ecc_uncorrected_dram,
    )
    return complete if state.mig is None else _with_mig(profile, complete)


def _with_mig(profile: Profile, state: State) -> State:
    """Return the state as it is with MIG enabled: no utilization, no volatile ECC counters, NVLinks down, BAR1 used.

    If the GPU has GPU instances, row remapping is not supported either.
    """
    board = profile.board
    disabled: list[str] = [
        "utilization",
        "memory_utilization",
        *_names_beginning_with("ecc_corrected", "ecc_uncorrected"),
    ]
    disabled += ["encoder_utilization", "decoder_utilization", "jpeg_utilization", "ofa_utilization"]
    disabled += _names_beginning_with("remap") if state.mig else []
    return replace(
        _without(state, disabled),
        links=tuple(link._replace(state=LINK_DOWN) for link in state.links),
        mig_mode=1,
        mig_pending=1,
        bar1_used=board.memory_total - board.memory_reserved,
    )


def _without(state: State, quantities: Iterable[str]) -> State:
    nones: dict[str, Any] = dict.fromkeys(quantities)
    return replace(state, **nones)


@cache
def _names_beginning_with(*beginnings: str) -> tuple[str, ...]:
    """Return the names of quantities that equal one of `beginnings`, or begin with one followed by an underscore."""
    return tuple(name for name in QUANTITIES if any(f"{name}_".startswith(f"{start}_") for start in beginnings))


@cache
def _constant_state(profile: Profile) -> State:
    """Return a healthy GPU's state with only the quantities that depend on neither time nor load."""
    board, fabric = profile.board, profile.fabric
    remaps = board.remap_banks is not None
    remap, retired, mig = (0 if has else None for has in (remaps, not remaps, bool(board.mig_profiles)))
    ampere, hopper, blackwell = (0 if board.architecture >= since else None for since in (7, 9, 10))
    numbers = (
        dict.fromkeys(_names_beginning_with(*_ZERO), 0)
        | dict.fromkeys(_names_beginning_with("remap"), remap)
        | dict.fromkeys(_names_beginning_with("retired"), retired)
        | dict.fromkeys(("mig_mode", "mig_pending"), mig)
        | dict.fromkeys(("recovery_action", "ecc_threshold_exceeded", "jpeg_utilization", "ofa_utilization"), ampere)
        | dict.fromkeys((*_names_beginning_with("pcie_errors"), "repair_impossible"), hopper)
        | dict.fromkeys(("repair_channel", "repair_tpc"), ampere)  # these three are 0 on a real H100, driver 580.159
        | dict.fromkeys(("repair_bank", "repair_banks_spent"), blackwell)
        | {"remap_banks_max": board.remap_banks}
    )
    if fabric is not None:
        numbers |= {"fabric_state": fabric.state, "fabric_status": 0, "fabric_health": fabric.health}
        numbers |= {"fabric_summary": fabric.summary, "fabric_clique": fabric.clique}
    return State(
        links=(Link(LINK_ACTIVE if profile.links_active else LINK_DOWN),) * board.links,
        c2c_links=(1,) * board.c2c_links,
        bar1_used=MIB,
        power_limit=board.power_limit,
        power_limit_requested=board.power_limit,
        pcie_width=board.pcie_width,
        persistence_mode=1,
        ecc_mode=1,
        ecc_pending=1,
        **numbers,
    )


def _clocks(profile: Profile, events: int) -> Clocks:
    board = profile.board
    if events & EVENT_IDLE:
        return board.clocks_idle
    graphics, _, memory, video = board.clocks_max
    share = 1.0
    if events & EVENT_POWER_CAP:
        share = (board.power_limit / board.power_full) ** 1.5
    if events & (EVENT_SW_THERMAL | EVENT_HW_THERMAL):
        share /= 2
    core = int(graphics * share) // CLOCK_STEP * CLOCK_STEP
    return core, core, memory, video


def utilization(course: Course, gpu: int, time: float) -> tuple[int, int]:
    """Return GPU utilization and load in percent at the driver's latest sample.

    The load is varied by up to 2 points if not 0. The utilization is the same, or 100 while a kernel waits for a peer.
    """
    sample = int(time * UTILIZATION_HERTZ)
    phase = course.at(sample / UTILIZATION_HERTZ).phase
    wobble = crc32(b"%d/%d" % (gpu, sample)) % 5 - 2
    load = min(100, max(1, round(100 * phase.load) + wobble)) if phase.load else 0
    return 100 if phase.spins else load, load


def _memory_temperature(profile: Profile, temperature: float) -> float | None:
    board = profile.board
    if board.memory_temperature_idle is None or board.memory_temperature_full is None:
        return None
    warmth = (temperature - board.temperature_idle) / (board.temperature_full - board.temperature_idle)
    return board.memory_temperature_idle + warmth * (board.memory_temperature_full - board.memory_temperature_idle)


def _module_power(profile: Profile, mean: float) -> float | None:
    board = profile.board
    if board.module_power_idle is None:
        return None
    return board.module_power_idle + (mean - board.power_idle) * (1 + MODULE_SHARE)


def _processes(profile: Profile, gpu: int, now: Moment, layout: Layout | None) -> tuple[Process, ...]:
    """Return the processes on a GPU: one for each job or, with MIG enabled, one for each job on each MIG device."""

    def memory(job: Job, room: int) -> int:
        return int(job.memory * room) // MIB * MIB

    jobs, board = now.phase.jobs, profile.board
    if layout is None:
        room = board.memory_total - board.memory_reserved
        return tuple(Process(pid_of(job, now.cycle, gpu, 0), memory(job, room)) for job in jobs)
    return tuple(
        Process(
            pid_of(job, now.cycle, gpu, place),
            memory(job, part.instance.profile.memory // len(part.instance.compute)),
            part.instance.number,
            part.number,
        )
        for job in jobs
        for place, part in enumerate(devices(layout))
    )
