"""TABLE: everything a simulated GPU would answer at one moment. A scenario can `set` every quantity here.

None is what the GPU does not support.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple
from zlib import crc32

from gpumon.sim.physics import Course, Moment
from gpumon.sim.profiles import MIB, Clocks, Profile

LINK_DOWN, LINK_ACTIVE, LINK_ASLEEP = 0, 1, 2
EVENT_IDLE, EVENT_POWER_CAP, EVENT_HW_SLOWDOWN, EVENT_SW_THERMAL, EVENT_HW_THERMAL = 0x1, 0x4, 0x8, 0x20, 0x40
EVENTS_SUPPORTED = 0x1FF
UTILIZATION_HERTZ = 6
"""The driver renews its utilization sample every 1/6 of a second."""
CLOCK_STEP = 15
"""MHz between two clocks of the core."""
LINK_KIB_PER_SECOND = 6_000_000
PCIE_BYTES_PER_SECOND = 200_000_000
"""Traffic under full load: of one NVLink, of the PCIe link."""
FIRST_PID, PIDS = 2_000_000, 2_000_000
"""Seldom the number of a process of the host."""


class Quantity(NamedTuple):
    """What a scenario may set a number to."""

    unit: str
    low: float
    high: float


class Process(NamedTuple):
    """A process on the GPU; memory in bytes."""

    pid: int
    memory: int


class Link(NamedTuple):
    """One NVLink: its state and what it counted."""

    state: int = LINK_ACTIVE
    replay: int = 0
    recovery: int = 0
    crc: int = 0


def quantity(unit: str, *, low: float = 0, high: float = 2**32 - 1) -> Any:
    """A number that a scenario can set."""
    return field(default=None, metadata={"quantity": Quantity(unit, low, high)})


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """One GPU at one moment."""

    on_bus: bool = True
    bound: str = "nvidia"
    counted: bool = True
    lost: bool = False
    lookup_code: int = 0
    """What looking its handle up answers."""
    field_codes: Mapping[str, int] = field(default_factory=dict)
    """What single fields of a batch answer, by name."""
    processes: tuple[Process, ...] = ()
    links: tuple[Link, ...] = ()
    held_back: bool = False
    """The power limit holds the load back."""

    utilization: float | None = quantity("%", high=100)
    memory_utilization: float | None = quantity("%", high=100)
    encoder_utilization: float | None = quantity("%", high=100)
    decoder_utilization: float | None = quantity("%", high=100)
    memory_used: float | None = quantity("bytes", high=2**63)
    bar1_used: float | None = quantity("bytes", high=2**63)
    temperature: float | None = quantity("degrees Celsius", high=255)
    memory_temperature: float | None = quantity("degrees Celsius", high=255)
    margin: float | None = quantity("degrees Celsius to slowdown", low=-255, high=255)
    power: float | None = quantity("W, as nvmlDeviceGetPowerUsage gives it; sets the next two as well", high=4e6)
    power_now: float | None = quantity("W", high=4e6)
    power_average: float | None = quantity("W, mean of the last second", high=4e6)
    memory_power: float | None = quantity("W", high=4e6)
    power_limit: float | None = quantity("W", high=4e6)
    energy: float | None = quantity("J since the driver was loaded", high=1e16)
    graphics_clock: float | None = quantity("MHz")
    sm_clock: float | None = quantity("MHz")
    memory_clock: float | None = quantity("MHz")
    video_clock: float | None = quantity("MHz")
    clock_events: float | None = quantity("NVML's bit mask")
    sw_power_cap_seconds: float | None = quantity("s", high=1e9)
    sync_boost_seconds: float | None = quantity("s", high=1e9)
    sw_thermal_seconds: float | None = quantity("s", high=1e9)
    hw_thermal_seconds: float | None = quantity("s", high=1e9)
    hw_power_brake_seconds: float | None = quantity("s", high=1e9)
    performance_state: float | None = quantity("0 to 15, or 32 for unknown", high=32)
    fan_speed: float | None = quantity("%", high=100)
    pcie_generation: float | None = quantity("")
    pcie_width: float | None = quantity("lanes")
    pcie_replays: float | None = quantity("")
    pcie_transmitted: float | None = quantity("bytes", high=2**63)
    pcie_received: float | None = quantity("bytes", high=2**63)
    nvlink_transmitted: float | None = quantity("KiB of one link", high=2**53)
    nvlink_received: float | None = quantity("KiB of one link", high=2**53)
    persistence_mode: float | None = quantity("0 or 1", high=1)
    compute_mode: float | None = quantity("0 to 3", high=3)
    mig_mode: float | None = quantity("0 or 1", high=1)
    ecc_mode: float | None = quantity("0 or 1", high=1)
    recovery_action: float | None = quantity("NVML's number")
    ecc_corrected_sram: float | None = quantity("", high=2**63)
    ecc_corrected_dram: float | None = quantity("", high=2**63)
    ecc_uncorrected_sram: float | None = quantity("", high=2**63)
    ecc_uncorrected_dram: float | None = quantity("", high=2**63)
    remap_correctable: float | None = quantity("rows")
    remap_uncorrectable: float | None = quantity("rows")
    remap_pending: float | None = quantity("0 or 1", high=1)
    remap_failed: float | None = quantity("0 or 1", high=1)
    retired_corrected: float | None = quantity("pages")
    retired_uncorrected: float | None = quantity("pages")
    retired_pending: float | None = quantity("0 or 1", high=1)


QUANTITIES: Mapping[str, Quantity] = {
    f.name: f.metadata["quantity"] for f in dataclasses.fields(State) if "quantity" in f.metadata
}


def observe(profile: Profile, gpu: int, course: Course, time: float) -> State:
    """The healthy GPU `time` seconds after the epoch, but for what `settle` works out."""
    now = course.at(time)
    point = now.point
    mean = point.energy - course.at(time - 1.0).point.energy if time >= 1.0 else point.power
    processes = _processes(profile, gpu, now)
    utilization = _utilization(course, gpu, time)
    traffic = point.load_seconds * LINK_KIB_PER_SECOND if profile.links else None
    return replace(
        _at_rest(profile),
        processes=processes,
        held_back=now.capped,
        utilization=utilization,
        memory_utilization=round(utilization * 0.6),
        memory_used=sum(process.memory for process in processes),
        temperature=point.temperature,
        memory_temperature=_memory_temperature(profile, point.temperature),
        power=mean if profile.power_mean else point.power,
        power_now=point.power,
        power_average=mean if profile.power_mean else None,
        memory_power=None if profile.memory_power_idle is None else profile.memory_power_idle + 25 * now.phase.load,
        energy=point.energy,
        sw_power_cap_seconds=point.capped_seconds,
        performance_state=0 if processes else profile.performance_state_idle,
        pcie_generation=profile.pcie_generation if processes else profile.pcie_generation_idle,
        pcie_transmitted=point.load_seconds * PCIE_BYTES_PER_SECOND,
        pcie_received=point.load_seconds * PCIE_BYTES_PER_SECOND,
        nvlink_transmitted=traffic,
        nvlink_received=traffic,
    )


def settle(profile: Profile, state: State) -> State:
    """Work out what follows from other quantities: margin, clock events, clocks."""
    temperature = state.temperature or 0.0
    capped = state.held_back or (state.power or 0.0) >= (state.power_limit or float("inf"))
    _, slowdown, _, highest = profile.thresholds
    events = (
        (0 if state.processes or state.utilization else EVENT_IDLE)
        | (EVENT_POWER_CAP if capped else 0)
        | (EVENT_SW_THERMAL if temperature >= highest else 0)
        | (EVENT_HW_SLOWDOWN | EVENT_HW_THERMAL if temperature >= slowdown else 0)
    )
    graphics, sm, memory, video = _clocks(profile, events)
    return replace(
        state,
        margin=None if profile.thermal_limits is None else highest - temperature,
        clock_events=events,
        graphics_clock=graphics,
        sm_clock=sm,
        memory_clock=memory,
        video_clock=video,
    )


@cache
def _at_rest(profile: Profile) -> State:
    """What does not move by itself."""
    remap, retired, mig = (0 if has else None for has in (profile.row_remap, not profile.row_remap, profile.mig))
    return State(
        links=(Link(),) * profile.links,
        encoder_utilization=0,
        decoder_utilization=0,
        bar1_used=MIB,
        power_limit=profile.power_limit,
        sync_boost_seconds=0,
        sw_thermal_seconds=0,
        hw_thermal_seconds=0,
        hw_power_brake_seconds=0,
        pcie_width=profile.pcie_width,
        pcie_replays=0,
        persistence_mode=1,
        compute_mode=0,
        mig_mode=mig,
        ecc_mode=1,
        recovery_action=0 if profile.row_remap else None,
        ecc_corrected_sram=0,
        ecc_corrected_dram=0,
        ecc_uncorrected_sram=0,
        ecc_uncorrected_dram=0,
        remap_correctable=remap,
        remap_uncorrectable=remap,
        remap_pending=remap,
        remap_failed=remap,
        retired_corrected=retired,
        retired_uncorrected=retired,
        retired_pending=retired,
    )


def _clocks(profile: Profile, events: int) -> Clocks:
    if events & EVENT_IDLE:
        return profile.clocks_idle
    graphics, _, memory, video = profile.clocks_max
    share = 1.0
    if events & EVENT_POWER_CAP:
        share = (profile.power_limit / profile.power_full) ** 1.5
    if events & (EVENT_SW_THERMAL | EVENT_HW_THERMAL):
        share /= 2
    core = int(graphics * share) // CLOCK_STEP * CLOCK_STEP
    return core, core, memory, video


def _utilization(course: Course, gpu: int, time: float) -> int:
    """Share of the last sample in which a kernel ran; a sample under load is never quite like the one before it."""
    sample = int(time * UTILIZATION_HERTZ)
    load = course.at(sample / UTILIZATION_HERTZ).phase.load
    wobble = crc32(b"%d/%d" % (gpu, sample)) % 5 - 2
    return min(100, max(1, round(100 * load) + wobble)) if load else 0


def _memory_temperature(profile: Profile, temperature: float) -> float | None:
    if profile.memory_temperature_idle is None or profile.memory_temperature_full is None:
        return None
    warmth = (temperature - profile.temperature_idle) / (profile.temperature_full - profile.temperature_idle)
    return profile.memory_temperature_idle + warmth * (
        profile.memory_temperature_full - profile.memory_temperature_idle
    )


def _processes(profile: Profile, gpu: int, now: Moment) -> tuple[Process, ...]:
    room = profile.memory_total - profile.memory_reserved
    return tuple(
        Process(FIRST_PID + ((now.cycle * 64 + job.number) * 16 + gpu) % PIDS, int(job.memory * room) // MIB * MIB)
        for job in now.phase.jobs
    )
